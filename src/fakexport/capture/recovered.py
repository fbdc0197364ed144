"""What became of the constants of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fakexport.diagnostics import Span

__all__ = ["Recovered", "UnboundConstant", "UnboundConstants", "UnboundReason"]

UnboundReason = Literal["parameter", "random", "unknown"]

_CODES: dict[UnboundReason, str] = {"parameter": "FE601", "random": "FE602", "unknown": "FE603"}
_NAMES_IN_WARNING = 5


@dataclass(frozen=True)
class UnboundConstant:
    """A constant without a value in its program, because the model's code does not determine one.

    Args:
        name: Its name in `program.constants`: `model.rotary.scale`, `lifted_tensor_0`.
        reason: `parameter`: its value is, or was computed from, that of a weight, which a checkpoint
            brings; `random`: it was drawn and nobody chose a seed; `unknown`: it cannot be computed here.
        detail: Why, as a sentence without capital and period.
        weight: The parameter, or the persistent buffer with which memory is shared; None for other reasons.
        operator: The operator that read the weight or drew the numbers, where there is one.
        span: The user's line where the program reads the constant first, where known.
    """

    name: str
    reason: UnboundReason
    detail: str
    weight: str | None = None
    operator: str | None = None
    span: Span | None = None

    @property
    def code(self) -> str:
        """The code of its diagnostic: `FE601`."""
        return _CODES[self.reason]


@dataclass(frozen=True)
class Recovered:
    """The constants of a program that have their values, and those that have none.

    Args:
        names: Those with their true values, in the order of `program.constants`.
        bytes: Memory that these values take; one that several names share is counted once.
        unbound: Those without a value, in the same order.
    """

    names: tuple[str, ...] = ()
    bytes: int = 0
    unbound: tuple[UnboundConstant, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every constant has its value."""
        return not self.unbound


class UnboundConstants(UserWarning):
    """`export` gives a program some of whose constants have no value; the text names them."""

    @classmethod
    def of(cls, constants: Sequence[UnboundConstant]) -> UnboundConstants:
        """The warning about these constants, at least one."""
        shown = [f"{c.name} ({c.code}: {c.detail})" for c in constants[:_NAMES_IN_WARNING]]
        if len(constants) > len(shown):
            shown.append(f"and {len(constants) - len(shown)} more")
        what = "1 constant has" if len(constants) == 1 else f"{len(constants)} constants have"
        codes = " and ".join(f"`fakexport explain {code}`" for code in sorted({c.code for c in constants}))
        return cls(
            f"the program is incomplete, {what} no value: {'; '.join(shown)}. Put the values into "
            f"`program.constants` before it runs; {codes} says how the model can do without"
        )
