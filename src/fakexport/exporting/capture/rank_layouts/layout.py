"""Layouts: the relation between a tensor on one rank and the corresponding tensor of the whole model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fakexport.error import FakexportError
from fakexport.rules.diagnostics import Span


class Placement(Enum):
    """Layouts without further parameters."""

    REPLICATE = "every rank has the whole tensor"
    FILL = "a tensor of one repeated number, which matches a shard of any size"
    PARTIAL = "a partial sum: the tensor of the model is the sum over the ranks"
    PARTS = "the shards of all ranks in sequence, before a tensor-parallel style combines them"
    OWN_ROWS = "rows of this rank's experts or vocabulary; rows of other ranks are zero in a sum over ranks"


@dataclass(frozen=True)
class ShardedDim:
    """A rank's shard of a dimension.

    Args:
        size: Size of the dimension in the whole model.
        ranges: Start and end of each range of indices that the rank stores, in the order in which it stores
            them. If several weights are packed along the dimension, each one has its own range.
    """

    size: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def local(self) -> int:
        """Size of the dimension on the rank."""
        return sum(end - start for start, end in self.ranges)

    def scaled(self, up: int, down: int = 1) -> ShardedDim | None:
        """Return the shard with all sizes multiplied by `up / down`, or None if a size is not an integer."""
        numbers = (self.size, *(bound for pair in self.ranges for bound in pair))
        if any(number * up % down for number in numbers):
            return None
        ranges = tuple((start * up // down, end * up // down) for start, end in self.ranges)
        return ShardedDim(self.size * up // down, ranges)

    def packed(self, first: int, last: int) -> ShardedDim:
        """Return the shard that consists of only the packed weights `first` to `last - 1`."""
        each = self.size // len(self.ranges)
        ranges = tuple((start - first * each, end - first * each) for start, end in self.ranges[first:last])
        return ShardedDim(each * (last - first), ranges)

    def edges(self) -> list[int]:
        """Return the positions in the rank's tensor at which packed weights start and end."""
        found = [0]
        for start, end in self.ranges:
            found.append(found[-1] + end - start)
        return found


@dataclass(frozen=True)
class Shard:
    """A layout in which one dimension of the tensor is sharded."""

    dim: int
    part: ShardedDim


Layout = Placement | Shard


class Fault(FakexportError, ValueError):
    """A node does not compute its share of the model's result.

    The message is a clause that starts with a verb.
    """


class NumberFault(Fault):
    """The node computes with a number that is different in the unsharded model."""


class ShardingChangesResult(FakexportError, ValueError):
    """The programs of all ranks together do not compute the model's result, or this cannot be verified.

    Args:
        message: A single line.
        span: The source line of the model that causes the error, if known.
        part_bytes: If gathering a shard would fix the error, the size of the shard in bytes for the example
            inputs. Otherwise None.
        is_number: Whether the cause is that the model's code computes with the size of a shard.
    """

    def __init__(
        self, message: str, span: Span | None, part_bytes: int | None = None, *, is_number: bool = False
    ) -> None:
        super().__init__(message)
        self.span = span
        self.part_bytes = part_bytes
        self.is_number = is_number
