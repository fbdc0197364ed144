"""What the tensor of one rank says about the tensor of the whole model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fakexport.error import FakexportError


class Common(Enum):
    """Layouts that need no further words."""

    WHOLE = "every rank has the tensor of the model"
    FILL = "one number everywhere, so that it is a part of any size too"
    SUM = "a summand: the tensor of the model is the sum over the ranks"
    PARTS = "the parts of all ranks one after the other, which a style is about to put together"
    OWN_ROWS = "rows of this rank's experts or vocabulary; those of other ranks count as zero in the sum"


@dataclass(frozen=True)
class Part:
    """The part of a dimension that a rank has.

    Args:
        size: Size of the dimension in the model.
        ranges: Start and end of each range that the rank has, in the order in which it has them. Several
            ranges are packed weights, of each of which it has its share.
    """

    size: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def local(self) -> int:
        """Size of the dimension on the rank."""
        return sum(end - start for start, end in self.ranges)

    def scaled(self, up: int, down: int = 1) -> Part | None:
        """Return the part of a dimension with `up / down` as many elements; None if the rank cuts one."""
        numbers = (self.size, *(bound for pair in self.ranges for bound in pair))
        if any(number * up % down for number in numbers):
            return None
        ranges = tuple((start * up // down, end * up // down) for start, end in self.ranges)
        return Part(self.size * up // down, ranges)

    def packed(self, first: int, last: int) -> Part:
        """Return the part that is left of packed weights if those from `first` to before `last` are taken."""
        each = self.size // len(self.ranges)
        ranges = tuple((start - first * each, end - first * each) for start, end in self.ranges[first:last])
        return Part(each * (last - first), ranges)

    def edges(self) -> list[int]:
        """Return where the packed weights begin and end on the rank."""
        found = [0]
        for start, end in self.ranges:
            found.append(found[-1] + end - start)
        return found


@dataclass(frozen=True)
class Cut:
    """The rank has a part of one dimension.

    Args:
        dim: From 0.
        part: Of this dimension.
    """

    dim: int
    part: Part


Layout = Common | Cut


class Fault(FakexportError, ValueError):
    """What a node does and the model does not, with all of its features; a clause that begins with a verb."""


class NumberFault(Fault):
    """The node computes with a number that the unsharded model does not compute with."""
