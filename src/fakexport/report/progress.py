"""What a check is doing right now, for anyone who shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

Step = Literal["build", "trace", "explore", "analyse", "compare"]


@dataclass
class BlockCount:
    """How far a trace is; changes while it runs.

    Args:
        done: Number of the model's repeated blocks that are traced.
        total: How many there are; 0 for a model without such blocks.
    """

    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class Progress:
    """The step that a check is about to take. Given to `on_progress` before the step begins.

    Args:
        target_index: Number of the target, from 1: `2` of 3. The last one for `compare`.
        target_count: Number of targets in this check.
        target: Name of the target, as in `TargetSpec.name`; the last one for `compare`, which is about all.
        step: `build` makes the fake module and its inputs, `trace` captures the program, `explore` looks for
            further problems of a model that could not be captured, `analyse` reads facts and findings off the
            program, `compare` finds what differs between the targets.
        finding: For `explore`, what stopped the capture, on one line; "" for the other steps.
        blocks: For `trace`, counts the model's blocks while they are traced: `blocks.done` of `blocks.total`.
            None for the other steps, and with `strict=True`.
    Raises:
        ValueError: an index outside 1 to `target_count`, or an unknown step.
    """

    target_index: int
    target_count: int
    target: str
    step: Step
    finding: str = ""
    blocks: BlockCount | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.target_index <= self.target_count:
            raise ValueError(f"target_index counts from 1 to {self.target_count}, got {self.target_index}")
        if self.step not in get_args(Step):
            raise ValueError(f"step must be one of {', '.join(get_args(Step))}; got {self.step!r}")
