"""Which part of a model the program of one rank is, as an archive records it; free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shard:
    """The part of a weight that is on one rank: ranges of one dimension, one after the other.

    Args:
        shape: Shape of the full weight.
        dim: The dimension that is cut.
        ranges: Start and end of each range, in elements of the dimension.
    """

    shape: tuple[int, ...]
    dim: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        size = sum(end - start for start, end in self.ranges)
        return (*self.shape[: self.dim], size, *self.shape[self.dim + 1 :])


@dataclass(frozen=True)
class ParallelRecord:
    """A rank among those that share a model.

    Args:
        degrees: Of parallelism, `tp=8`.
        rank: From 0.
        ranks: Processes that run the model together, each with its own program.
        shards: The part of each sharded weight by its name in the program; empty for a stored program, of
            which recipes say it.
        styles: The style that the plan has for each module and each weight by name; empty likewise.
        unused_rules: Rules of the plan that name nothing in the model.
    """

    degrees: str
    rank: int
    ranks: int
    shards: Mapping[str, Shard] = field(default_factory=dict, compare=False, repr=False)
    styles: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    unused_rules: tuple[str, ...] = field(default=(), compare=False, repr=False)
