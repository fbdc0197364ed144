"""A constant without a value."""

from __future__ import annotations

from dataclasses import dataclass

from fakexport.diagnostics import Span
from fakexport.documents import UnboundName
from fakexport.documents import UnboundReason as UnboundReason

_CODES: dict[UnboundReason, str] = {"parameter": "FE601", "random": "FE602", "unknown": "FE603"}


@dataclass(frozen=True)
class UnboundConstant(UnboundName):
    """A constant without a value, of a program that is not in an archive.

    Args:
        span: The user's line where the program reads the constant first, where known.
    """

    span: Span | None = None

    @property
    def code(self) -> str:
        """The code of its diagnostic: `FE601`."""
        return _CODES[self.reason]
