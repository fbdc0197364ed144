"""Ways to hand a model over, as a bar chart."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fakexport.report.bench_report import BenchReport, BenchRow
from fakexport.report.quantity import bytes_text, plural
from fakexport.report.spread import Spread, duration_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ChartFormat = Literal["png", "svg"]
_BAR, _QUARTILES, _MISSING = "#4477aa", "#222222", "#aa3377"
# Without these an SVG would have other names and the hour in it each time.
_SETTINGS = {"svg.hashsalt": "fakexport", "svg.fonttype": "none", "font.size": 9.0}


def render_bench_chart(report: BenchReport, *, format_: ChartFormat) -> bytes:
    """Draw latency over eager's, load time, file size and memory, one bar per mode. A failure is a word.

    The same report returns the same bytes with the same matplotlib.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):
        figure = Figure(figsize=(13, 1.6 + 0.36 * len(report.rows)), layout="constrained")
        latency, load, size, memory = figure.subplots(1, 4, sharey=True)
        _draw(latency, report.rows, "latency, eager = 1", _median_ratio, "{:.2f}".format)
        _draw_quartiles(latency, report.rows)
        _draw(load, report.rows, "load", lambda row: row.measures.load_s, duration_text)
        _draw(size, report.rows, "files", lambda row: row.measures.size_bytes, lambda v: bytes_text(int(v)))
        _draw(
            memory, report.rows, "memory", lambda row: row.measures.memory_bytes, lambda v: bytes_text(int(v))
        )
        latency.set_yticks(range(len(report.rows)), [_label(row) for row in report.rows])
        latency.invert_yaxis()
        machine = ", ".join(
            (report.processor, plural(report.threads, "thread"), f"torch {report.versions['torch']}")
        )
        figure.suptitle(f"{report.source}\n{machine}", parse_math=False)
        written = io.BytesIO()
        metadata: dict[str, Any] = {"Date": None} if format_ == "svg" else {}
        figure.savefig(written, format=format_, metadata=metadata, dpi=150)
    return written.getvalue()


def _draw(
    axes: Axes,
    rows: Sequence[BenchRow],
    title: str,
    value: Callable[[BenchRow], float | None],
    text: Callable[[float], str],
) -> None:
    """One panel: a bar and its number for each mode."""
    values = [value(row) for row in rows]
    axes.barh(range(len(rows)), [0 if found is None else found for found in values], color=_BAR, height=0.7)
    for place, (row, found) in enumerate(zip(rows, values, strict=True)):
        said, colour = (_absence(row), _MISSING) if found is None else (text(found), _QUARTILES)
        axes.annotate(
            said,
            (found or 0, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=colour,
        )
    axes.set_title(title)
    axes.set_xticks([])
    axes.set_xlim(0, 1.45 * max((found for found in values if found is not None), default=1.0) or 1.0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _draw_quartiles(axes: Axes, rows: Sequence[BenchRow]) -> None:
    """Where half of the turns are, and a line at eager's latency."""
    for place, row in enumerate(rows):
        if (ratio := row.measures.ratio) is not None:
            axes.plot([ratio.lower, ratio.upper], [place + 0.25] * 2, color=_QUARTILES, linewidth=1.5)
    axes.axvline(1.0, color=_QUARTILES, linewidth=0.8, linestyle=":")


def _median_ratio(row: BenchRow) -> float | None:
    ratio: Spread | None = row.measures.ratio
    return None if ratio is None else ratio.median


def _label(row: BenchRow) -> str:
    return f"{row.mode}\n(wrong outputs)" if row.is_equal is False else row.mode


def _absence(row: BenchRow) -> str:
    """Return why a bar is missing."""
    if not row.is_captured:
        return "not captured"
    stopped = [failure.step for failure in row.failures if failure.step != "resize"]
    return f"fails: {stopped[0]}" if stopped else "none"
