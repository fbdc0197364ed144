"""What a benchmark of deployment formats measured, as values and as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from fakexport.diagnostics import escaped
from fakexport.report.quantity import Spread, bytes_text, duration_text, plural, range_text
from fakexport.report.table import layout, wide_layout, wrapped

T = TypeVar("T")
BenchStep = Literal["make", "load", "run", "compare", "resize", "time"]


@dataclass(frozen=True)
class BenchFailure:
    """What did not work, and why.

    Args:
        step: `make` captures, compiles and writes; `load` opens what was written; `run` is the first call;
            `compare` holds its outputs against eager's; `resize` is a call in other sizes; `time` measures.
        reason: One line: an error, a signal, a time limit.
    """

    step: BenchStep
    reason: str


@dataclass(frozen=True)
class BenchMeasures:
    """Figures of one way, on this machine in this run. What was not reached is None.

    Args:
        difference: Largest difference of a number in the outputs to eager's.
        size_bytes: Size of the files that were written.
        make_s: What writing them took, with capture and compilation.
        load_s: From the files to something that can be called, packages that have to be imported included.
        first_call_s: The first call, in which `torch.compile` compiles.
        latency_s: Latency of a later call.
        ratio: Latency over that of eager, call by call in turns in one process; more than 1 is slower.
        memory_bytes: Growth of peak resident memory from before loading until after the first call.
    """

    difference: float | None = None
    size_bytes: int | None = None
    make_s: float | None = None
    load_s: float | None = None
    first_call_s: float | None = None
    latency_s: Spread | None = None
    ratio: Spread | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class BenchRow:
    """One way to hand the model over.

    Args:
        mode: Its name, `export+compile`.
        is_captured: Whether everything was written that has to be. True for eager, which writes nothing.
        is_equal: Whether the outputs are eager's but for rounding; None where it did not run.
        keeps_dynamic: Whether it returns eager's outputs for other sizes too; None if that was not tried.
        needs_code: Whether it is of use only where the model's Python code is; None where it did not load.
        failures: In the order in which they were met.
        measures: The figures.
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
    """One model in several ways.

    Args:
        source: As the user named it.
        inputs: `input_ids=int64[2,16]`, one for each input tensor.
        other_inputs: The same in the other sizes that were tried; empty where no dimension varies.
        assumptions: Sentences for the reader.
        rows: In the order asked.
        versions: Versions of packages that took part.
        processor: The machine's.
        threads: Threads of torch.
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
    """Return what was run, one row per mode, why cells are empty, and one line of summary."""
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
