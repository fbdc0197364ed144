"""Results of a benchmark of deployment formats, and their rendering as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from fakexport.files import escaped
from fakexport.report.quantity import Distance, Spread, bytes_text, duration_text, plural, range_text
from fakexport.report.table import layout, wide_layout, wrapped

T = TypeVar("T")
BenchStep = Literal["make", "load", "run", "compare", "resize", "time"]


@dataclass(frozen=True)
class BenchFailure:
    """A step that failed, and why.

    Args:
        step: `make` captures, compiles and writes; `load` opens the written files; `run` is the first call;
            `compare` compares the outputs with those of eager mode; `resize` is a call with inputs of
            different sizes; `time` measures the latency.
        reason: One line: an error, a signal or a time limit.
    """

    step: BenchStep
    reason: str


@dataclass(frozen=True)
class BenchMeasures:
    """Measurements of one mode. A value is None if the step that measures it was not reached.

    Args:
        difference: Largest absolute difference between the outputs and the outputs of eager mode.
        size_bytes: Size of the written files.
        make_s: Time to write the files, including capture and compilation.
        load_s: Time to load the files into a callable, including the import of required packages.
        first_call_s: Time of the first call, which includes compilation for `torch.compile`.
        latency_s: Latency of later calls.
        ratio: Latency divided by the latency of eager mode. If the ratio is above 1, the mode is slower than
            eager mode. Calls of the mode and of eager mode alternate in one process.
        memory_bytes: Growth of peak resident memory from before loading until after the first call.
    """

    difference: Distance | None = None
    size_bytes: int | None = None
    make_s: float | None = None
    load_s: float | None = None
    first_call_s: float | None = None
    latency_s: Spread | None = None
    ratio: Spread | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class BenchRow:
    """One deployment mode.

    Args:
        mode: Name of the mode, such as `export+compile`.
        is_captured: Whether all required files were written. Also true for eager mode, which writes no files.
        is_equal: Whether the outputs equal those of eager mode up to rounding; None if the mode did not run.
        keeps_dynamic: Whether the outputs also match for inputs of different sizes; None if no different
            sizes were tried.
        needs_code: Whether the mode requires the Python code of the model; None if the mode did not load.
        failures: The failed steps, in the order in which they ran.
        measures: The measurements.
    """

    mode: str
    is_captured: bool
    is_equal: bool | None = None
    keeps_dynamic: bool | None = None
    needs_code: bool | None = None
    failures: tuple[BenchFailure, ...] = ()
    measures: BenchMeasures = field(default_factory=BenchMeasures)


@dataclass(frozen=True)
class BenchReport:
    """Benchmark results of one model in several deployment modes.

    Args:
        source: The model's source, as the user wrote it.
        inputs: One string per input tensor: `input_ids=int64[2,16]`.
        other_inputs: Inputs with different sizes that were tried; empty if no dimension is dynamic.
        assumptions: One sentence per assumption.
        rows: One row per mode, in the requested order.
        versions: Package name -> version, for the packages that were used.
        processor: Name of the processor.
        threads: Number of threads that torch uses.
    """

    source: str
    inputs: tuple[str, ...]
    other_inputs: tuple[str, ...]
    assumptions: tuple[str, ...]
    rows: tuple[BenchRow, ...]
    versions: Mapping[str, str]
    processor: str
    threads: int


_NONE = "-"
_HEAD = (
    *("mode", "captures", "as eager", "dynamic", "needs code", "difference", "size"),
    *("make", "load", "first call", "latency", "quartiles", "x eager", "memory"),
)
_RIGHT = range(5, len(_HEAD))
_WHAT: dict[BenchStep, str] = {
    "make": "cannot be exported",
    "load": "does not load",
    "run": "does not run",
    "compare": "returns different outputs",
    "resize": "does not keep dynamic shapes",
    "time": "is not timed",
}


def render_bench(report: BenchReport, *, width: int) -> str:
    """Return the configuration, one row per mode, the reasons for empty cells, and a summary line."""
    parts = ["\n".join(layout(_about(report)))]
    parts[0] += "".join(f"\n{line}" for text in report.assumptions for line in wrapped(text, width))
    parts.append("\n".join(wide_layout([_HEAD, *map(_row, report.rows)], width=width, right=_RIGHT)))
    told = [(row.mode, failure) for row in report.rows for failure in row.failures]
    lines = (wrapped(f"{mode} {failure_text(why)}", width, later="    ") for mode, why in told)
    parts.append("\n".join(line for text in lines for line in text))
    as_eager = sum(row.is_equal is True for row in report.rows)
    parts.append(f"{as_eager} of {plural(len(report.rows), 'mode')} match eager up to rounding")
    return "\n\n".join(part for part in parts if part) + "\n"


def failure_text(failure: BenchFailure) -> str:
    """Return `cannot be exported: FE203: ...`."""
    return f"{_WHAT[failure.step]}: {failure.reason}"


def _about(report: BenchReport) -> list[tuple[str, str]]:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    rows = [("model", report.source), ("inputs", ", ".join(report.inputs) or "none")]
    if report.other_inputs:
        rows.append(("other sizes", ", ".join(report.other_inputs)))
    rows.append(("machine", f"{report.processor}, {plural(report.threads, 'thread')}"))
    rows.append(("versions", versions))
    return [(name, escaped(text)) for name, text in rows]


def _row(row: BenchRow) -> tuple[str, ...]:
    found = row.measures
    verdicts = (row.is_captured, row.is_equal, row.keeps_dynamic, row.needs_code)
    return (
        row.mode,
        *(_cell(is_so, lambda is_so: "yes" if is_so else "no") for is_so in verdicts),
        _cell(found.difference, "{:.2g}".format),
        _cell(found.size_bytes, bytes_text),
        *(_cell(seconds, duration_text) for seconds in (found.make_s, found.load_s, found.first_call_s)),
        _cell(found.latency_s, lambda latency: duration_text(latency.median)),
        _cell(found.latency_s, range_text),
        _cell(found.ratio, lambda ratio: f"{ratio.median:.2f}"),
        _cell(found.memory_bytes, bytes_text),
    )


def _cell(value: T | None, text: Callable[[T], str]) -> str:
    return _NONE if value is None else text(value)
