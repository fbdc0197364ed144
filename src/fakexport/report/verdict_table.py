"""Render the verdict table: one row per target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fakexport.files import escaped
from fakexport.report.quantity import (
    bytes_text,
    device_names,
    device_sizes,
    elements_text,
    equal_rows,
    plural,
    seconds_text,
)
from fakexport.report.table import wide_layout, wrapped
from fakexport.report.transfer_listing import transferred_text
from fakexport.report.verdict import Report, Verdict

if TYPE_CHECKING:
    from fakexport.exporting.program import ProgramSummary

FACTS_HEAD = ("target", "verdict", "devices", "nodes", "parameters", "weights per device", "transfers")
MEASURED_HEAD = ("target", "build", "capture", "analyse", "peak memory", "growth")
_RIGHT = (3, 4)
_MEASURED_RIGHT = (1, 2, 3, 4, 5)
_MOST_ROWS_OF_DEVICES = 2
_PEAK_EXCEEDS = "FE506"
_MOST_CONSTANTS = 4
_NONE = "-"
MEMORY_LEFT = "memory left"
STATE = "cache and state"
"""Title of the column with `state_of`, shown if a program has state. `plan` uses the same term."""


def verdict_table(report: Report, *, width: int) -> list[str]:
    """Return the lines of two tables: reproducible facts, and measurements of this run.

    Weights are parameters, buffers and constants. Tensors that the program writes have a separate column. The
    column `memory left` shows the memory that remains after loading the weights, on the fullest device whose
    memory is known. The column `peak memory` is about the process that checked the target. Tables that are
    too wide are split.
    """
    rows = [FACTS_HEAD, *map(fact_cells, report.verdicts)]
    if any(map(has_state, report.verdicts)):
        state = [STATE, *map(state_of, report.verdicts)]
        rows = [(*row[:-1], cell, row[-1]) for row, cell in zip(rows, state, strict=True)]
    if any(verdict.memory_left for verdict in report.verdicts):
        left = [MEMORY_LEFT, *(memory_left_text(report, verdict) for verdict in report.verdicts)]
        rows = [(*row[:-1], cell, row[-1]) for row, cell in zip(rows, left, strict=True)]
    facts = wide_layout(rows, width=width, right=_RIGHT)
    measured = wide_layout(
        [MEASURED_HEAD, *map(measured_cells, report.verdicts)], width=width, right=_MEASURED_RIGHT
    )
    return [*facts, "", *measured]


def remarks(report: Report, *, width: int) -> list[str]:
    """Return the lines of all remarks, wrapped to `width`."""
    notes = (wrapped(f"note: {text}", width, later="      ") for text in remark_texts(report))
    return [line for note in notes for line in note]


def remark_texts(report: Report) -> list[str]:
    """Return each assumption and note once, with the targets that it applies to."""
    targets: dict[str, list[str]] = {}
    for verdict in report.verdicts:
        own = (
            *verdict.target.assumptions,
            *verdict.notes,
            *uneven_weights(verdict),
            *constant_notes(verdict),
        )
        for text in dict.fromkeys(own):
            targets.setdefault(text, []).append(verdict.target.name)
    every = len(report.verdicts)
    about = {text: "" if len(names) == every else f"{', '.join(names)}: " for text, names in targets.items()}
    return [f"{names}{text}" for text, names in about.items()]


def result_text(verdict: Verdict) -> str:
    """Return `exports`, or `fails at capture`."""
    if verdict.is_exportable:
        return "exports"
    return f"fails at {verdict.failed_stage}" if verdict.failed_stage else "fails"


def weights_of(verdict: Verdict) -> str:
    """Return the bytes of the weights per device or pipeline stage: `8 x 94.5 GiB`; `-` for none."""
    if verdict.stages is not None:
        return _weights_text({f"stage:{each.stage}": each.weight_bytes for each in verdict.stages.stages})
    return _NONE if verdict.summary is None else _weights_text(weight_bytes(verdict.summary))


def has_state(verdict: Verdict) -> bool:
    """Return whether the program writes into tensors that it owns."""
    return verdict.summary is not None and verdict.summary.state.count > 0


def state_of(verdict: Verdict) -> str:
    """Return the bytes per device of the tensors that the program owns and writes; `-` for none."""
    return _NONE if verdict.summary is None else _weights_text(verdict.summary.state.bytes_per_device)


def fact_cells(verdict: Verdict) -> tuple[str, ...]:
    summary = verdict.summary
    name, result = escaped(verdict.target.name), result_text(verdict)
    if summary is None:
        return (name, result, *[_NONE] * (len(FACTS_HEAD) - 2))
    return (
        name,
        result,
        device_names(summary.devices) or _NONE,
        f"{summary.node_count:,}",
        elements_text(summary.parameters.elements),
        weights_of(verdict),
        transferred_text(verdict.transfers),
    )


def memory_left_text(report: Report, verdict: Verdict) -> str:
    """Return `64.2 GiB`, `-15.8 GiB` or `not enough` if the weights fit but the peak does not."""
    if any(d.code == _PEAK_EXCEEDS and verdict.target.name in d.targets for d in report.diagnostics):
        return "not enough"
    if not verdict.memory_left:
        return _NONE
    least = min(verdict.memory_left.values())
    return f"-{bytes_text(-least)}" if least < 0 else bytes_text(least)


def measured_cells(verdict: Verdict) -> tuple[str, ...]:
    timings = verdict.timings
    return (
        escaped(verdict.target.name),
        seconds_text(timings.build_s),
        seconds_text(timings.capture_s),
        seconds_text(timings.analyse_s),
        bytes_text(timings.peak_rss_bytes),
        bytes_text(timings.growth_bytes),
    )


def weight_bytes(summary: ProgramSummary) -> Counter[str]:
    """Return bytes per device of the parameters, buffers and constants that the program does not write."""
    total = summary.held_bytes()
    total.subtract(summary.state.bytes_per_device)
    return +total


def _weights_text(sizes: Mapping[str, int]) -> str:
    """Return `1.3 KiB`, `cpu 480 B, cuda:0 80 B`, `8 x 94.5 GiB` or `8 x 89.1 GiB to 101.3 GiB`."""
    rows = equal_rows(sizes)
    if not rows:
        return _NONE
    if len(rows) == 1:
        return (f"{len(sizes)} x " if len(sizes) > 1 else "") + rows[0][1]
    if len(rows) <= _MOST_ROWS_OF_DEVICES:
        return device_sizes(sizes)
    return f"{len(sizes)} x {bytes_text(min(sizes.values()))} to {bytes_text(max(sizes.values()))}"


def uneven_weights(verdict: Verdict) -> tuple[str, ...]:
    """Return a sentence with the weights of each device, if the table only summarizes them."""
    sizes = {} if verdict.summary is None else weight_bytes(verdict.summary)
    is_cut = len(equal_rows(sizes)) > _MOST_ROWS_OF_DEVICES
    return (f"weights: {device_sizes(sizes)}",) if is_cut else ()


def constant_notes(verdict: Verdict) -> tuple[str, ...]:
    """Return a note on the number of recomputed constants, and on the constants without a value."""
    recovered = verdict.recovered
    if recovered is None or not (recovered.names or recovered.unbound):
        return ()
    texts = []
    if recovered.names:
        size, verb = bytes_text(recovered.bytes), "was" if len(recovered.names) == 1 else "were"
        tensors = plural(len(recovered.names), "tensor")
        texts.append(f"{tensors} that no checkpoint contains ({size}) {verb} recomputed exactly")
    if recovered.unbound:
        named = [f"{constant.name} ({constant.code})" for constant in recovered.unbound[:_MOST_CONSTANTS]]
        if (more := len(recovered.unbound) - len(named)) > 0:
            named.append(f"and {more:,} more")
        verb = "has" if len(recovered.unbound) == 1 else "have"
        constants = plural(len(recovered.unbound), "constant")
        texts.append(f"{constants} {verb} no value, so the program is incomplete: {', '.join(named)}")
    return ("; ".join(texts),)
