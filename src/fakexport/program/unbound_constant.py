"""A constant without a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fakexport.diagnostics import Span

UnboundReason = Literal["parameter", "random", "unknown"]

_CODES: dict[UnboundReason, str] = {"parameter": "FE601", "random": "FE602", "unknown": "FE603"}


@dataclass(frozen=True)
class UnboundConstant:
    """A constant without a value in its program, because the model's code does not determine one.

    Args:
        name: Its name in `program.constants`: `model.rotary.scale`, `lifted_tensor_0`.
        reason: `parameter`: its value is, or was computed from, that of a weight, which a checkpoint
            brings; `random`: it was drawn without a seed; `unknown`: it cannot be computed here.
        detail: Why, as a sentence without capital and period.
        weight: The parameter, or the persistent buffer with which memory is shared; None for other reasons.
        operator: The operator that read the weight or drew the numbers, where there is one.
        recipe: Digest of the operators that compute it, "" if they are unknown.
        span: The user's line where the program reads the constant first, where known.
    """

    name: str
    reason: UnboundReason
    detail: str
    weight: str | None = None
    operator: str | None = None
    recipe: str = ""
    span: Span | None = None

    @property
    def code(self) -> str:
        """The code of its diagnostic: `FE601`."""
        return _CODES[self.reason]
