"""Summary of the pipeline stages of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fakexport.files import escaped
from fakexport.report.quantity import bytes_text, duration_text, plural
from fakexport.report.table import layout

_INDENT = "    "


@dataclass(frozen=True)
class StageInput:
    """A tensor that a stage takes.

    Args:
        name: Name of the input: that of the program's input, or of the node that computes the value.
        dtype: Name of the dtype, such as `bfloat16`.
        shape: Sizes as text; a symbolic size is an expression.
        bytes: Size at the example inputs; None if it is known only at run time.
        source: Number of the stage that computes the value; None for an input of the program.
    """

    name: str
    dtype: str
    shape: tuple[str, ...]
    bytes: int | None
    source: int | None


@dataclass(frozen=True)
class StageSummary:
    """One pipeline stage.

    Args:
        stage: Number of the stage, from 0.
        start: Path of the module at which it begins; "" for the first stage.
        nodes: Number of operator calls.
        again: Number of these that an earlier stage runs too, because it costs less than sending the result.
        weight_bytes: Bytes of parameters, buffers and constants.
        peak_bytes: Most bytes of tensors on one device during a run, at the sizes of the example inputs; None
            if a size is known only at run time.
        least_seconds: Lower bound of the time of a run at these sizes; None if the rates are unknown.
        inputs: The tensors that the stage takes.
    """

    stage: int
    start: str
    nodes: int
    again: int
    weight_bytes: int
    peak_bytes: int | None
    least_seconds: float | None
    inputs: tuple[StageInput, ...]

    @property
    def received(self) -> tuple[StageInput, ...]:
        """The inputs that earlier stages compute."""
        return tuple(each for each in self.inputs if each.source is not None)

    @property
    def received_bytes(self) -> int | None:
        """Bytes of the values of earlier stages; None if a size is known only at run time."""
        sizes = [each.bytes for each in self.received]
        return None if None in sizes else sum(size or 0 for size in sizes)


@dataclass(frozen=True)
class StagesSummary:
    """The pipeline stages of one target.

    Args:
        stages: One per stage.
        shared: Names of the weights that several stages contain.
    """

    stages: tuple[StageSummary, ...]
    shared: tuple[str, ...]


def stage_listing(name: str, summary: StagesSummary) -> list[str]:
    """Return the summary of a target's stages, with a row for each stage and for each value that is sent."""
    rows = layout([STAGE_COLUMNS, *map(stage_cells, summary.stages)], right=(2, 3, 4, 5, 6), indent=_INDENT)
    lines = [f"  {name}: {plural(len(summary.stages), 'stage')}", *rows]
    for stage in summary.stages:
        lines += [f"{_INDENT}stage {stage.stage} takes {received_text(each)}" for each in stage.inputs]
    return [*lines, *(f"{_INDENT}{line}" for line in shared_lines(summary))]


STAGE_COLUMNS = ("stage", "begins at", "nodes", "weights", "peak", "received", "at least")


def stage_cells(stage: StageSummary) -> Sequence[str]:
    """Return the cells of a stage's row."""
    again = f" ({stage.again:,} again)" if stage.again else ""
    return (
        str(stage.stage),
        escaped(stage.start) or "the inputs",
        f"{stage.nodes:,}{again}",
        bytes_text(stage.weight_bytes),
        *("?" if size is None else bytes_text(size) for size in (stage.peak_bytes, stage.received_bytes)),
        "?" if stage.least_seconds is None else duration_text(stage.least_seconds),
    )


def received_text(each: StageInput) -> str:
    """Return what a stage takes, and where it comes from."""
    size = "?" if each.bytes is None else bytes_text(each.bytes)
    source = "an input of the program" if each.source is None else f"from stage {each.source}"
    return f"{escaped(each.name)}, {each.dtype}[{', '.join(each.shape)}], {size}, {source}"


def shared_lines(summary: StagesSummary) -> list[str]:
    """Return a sentence about weights that several stages contain, if there are any."""
    if not summary.shared:
        return []
    shown = ", ".join(map(escaped, summary.shared[:3]))
    more = f" and {len(summary.shared) - 3} more" if len(summary.shared) > 3 else ""
    return [f"several stages contain {shown}{more}"]
