"""The error for a rank's program that does not compute its share of the model."""

from __future__ import annotations

from fakexport.diagnostics import Span
from fakexport.error import FakexportError


class ShardingChangesResult(FakexportError, ValueError):
    """The programs of the ranks would not compute together what the model computes, or it is not known.

    Args:
        message: One line.
        span: The line of the model.
        part_bytes: Bytes of the part that the rank has, where a gather would help; at the example's sizes.
        is_number: The code computes with a size of the rank.
    """

    def __init__(
        self, message: str, span: Span | None, part_bytes: int | None = None, *, is_number: bool = False
    ) -> None:
        super().__init__(message)
        self.span = span
        self.part_bytes = part_bytes
        self.is_number = is_number
