"""What became of the constants of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fakexport.program import UnboundConstant, UnboundReason

__all__ = ["Recovered", "UnboundConstant", "UnboundConstants", "UnboundReason"]

_NAMES_IN_WARNING = 5


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


class PartialProgram(UserWarning):
    """The exported program is not the whole model that its source names, as FE104 and FE105 report."""


class UnboundConstants(UserWarning):
    """Some constants of the exported program have no value; the text names them."""

    @classmethod
    def of(cls, constants: Sequence[UnboundConstant]) -> UnboundConstants:
        """Return the warning about these constants, at least one."""
        shown = [f"{c.name} ({c.code}: {c.detail})" for c in constants[:_NAMES_IN_WARNING]]
        if len(constants) > len(shown):
            shown.append(f"and {len(constants) - len(shown)} more")
        what = "1 constant has" if len(constants) == 1 else f"{len(constants)} constants have"
        codes = " and ".join(f"`fakexport explain {code}`" for code in sorted({c.code for c in constants}))
        return cls(
            f"the program is incomplete, {what} no value: {'; '.join(shown)}. Put the values into "
            f"`program.constants` before it runs; {codes} explains how to avoid them"
        )
