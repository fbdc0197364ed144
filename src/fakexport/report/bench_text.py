"""Ways to hand a model over, as text for people."""

from __future__ import annotations

import math

from fakexport.documents import escaped
from fakexport.report.bench_report import BenchFailure, BenchReport, BenchRow, BenchStep
from fakexport.report.quantity import bytes_text, plural
from fakexport.report.spread import Spread, duration_text, range_text
from fakexport.report.table import layout, wide_layout, wrapped

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
    return (
        row.mode,
        *map(_verdict, (row.is_captured, row.is_equal, row.keeps_dynamic, row.needs_code)),
        _NONE if found.difference is None else _difference(found.difference),
        _bytes(found.size_bytes),
        *map(_duration, (found.make_s, found.load_s, found.first_call_s)),
        _NONE if found.latency_s is None else duration_text(found.latency_s.median),
        _NONE if found.latency_s is None else range_text(found.latency_s),
        _NONE if found.ratio is None else _ratio(found.ratio),
        _bytes(found.memory_bytes),
    )


def _verdict(is_so: bool | None) -> str:
    return _NONE if is_so is None else "yes" if is_so else "no"


def _difference(difference: float) -> str:
    return "inf" if math.isinf(difference) else f"{difference:.2g}"


def _bytes(size: int | None) -> str:
    return _NONE if size is None else bytes_text(size)


def _duration(duration_s: float | None) -> str:
    return _NONE if duration_s is None else duration_text(duration_s)


def _ratio(ratio: Spread) -> str:
    return f"{ratio.median:.2f}"
