"""Compute a rank's shard of a tensor. Tensors are split as `torch.chunk` and DTensor split them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch

from fakexport._torch.operators.functional_collectives import all_gather
from fakexport.files.documents import ParallelRecord, Shard


def chunk(size: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return the start and end of a rank's part of a dimension.

    If the size is not divisible by the number of ranks, the parts of the last ranks are smaller.

    Example:
        >>> [chunk(10, 4, rank) for rank in range(4)]
        [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    width = -(-size // ranks)
    return min(rank * width, size), min((rank + 1) * width, size)


def shard_of(shape: Iterable[int], dim: int, ranks: int, rank: int, groups: int = 1) -> Shard:
    """Return a rank's shard of a weight.

    Args:
        shape: Shape of the full weight.
        dim: The sharded dimension. A negative number counts from the end.
        ranks: Number of shards.
        rank: The rank.
        groups: Number of weights that are packed along the dimension. Each packed weight is split separately.
    """
    full = tuple(shape)
    dim %= len(full)
    width = -(-full[dim] // groups)
    bounds = [min(group * width, full[dim]) for group in range(groups + 1)]
    ranges = []
    for first, last in pairwise(bounds):
        start, end = chunk(last - first, ranks, rank)
        ranges.append((first + start, first + end))
    return Shard(full, dim, tuple(ranges))


def part_of(full: torch.Tensor, shard: Shard) -> torch.Tensor:
    """Return a contiguous copy of a shard of a full weight, with the same dtype and device."""
    parts = [full.narrow(shard.dim, start, end - start) for start, end in shard.ranges]
    return (
        parts[0].clone(memory_format=torch.contiguous_format)
        if len(parts) == 1
        else torch.cat(parts, shard.dim)
    )


def local_shapes(record: ParallelRecord, rank: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the sharded weights on a rank, ordered by name."""
    shards = (record.shards[name] for name in sorted(record.shards))
    return tuple(
        shard_of(shard.shape, shard.dim, record.ranks, rank, len(shard.ranges)).local_shape
        for shard in shards
    )


@dataclass(frozen=True)
class Place:
    """One rank among all ranks of a parallel model.

    Args:
        rank: Starting at 0.
        ranks: Number of processes that share the model.
        has_whole: Whether the weights stay whole. The traced program then has the nodes of a rank's program,
            but the sizes of the whole model. It is only compared with the programs of the ranks, and never
            run.
    """

    rank: int
    ranks: int
    has_whole: bool = False

    def size(self) -> int:
        """Return the number of ranks over which weights are sharded, like `DeviceMesh.size`."""
        return 1 if self.has_whole else self.ranks

    def bounds(self, size: int) -> tuple[int, int]:
        """Return the start and end of this rank's shard of a dimension."""
        return (0, size) if self.has_whole else chunk(size, self.ranks, self.rank)

    def slice(self, value: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard of the last dimension of a tensor that is whole on every rank."""
        start, end = self.bounds(value.shape[-1])
        return value.narrow(-1, start, end - start)

    def gather(self, value: torch.Tensor, size: int) -> torch.Tensor:
        """Gather the last dimension of this rank's `[..., local]` from all ranks, up to the full size.

        Uneven shards are padded to the size of the largest shard for the transfer.
        """
        ranks = self.size()
        width = chunk(size, ranks, 0)[1]
        is_even = size % self.ranks == 0
        given = value if is_even else torch.nn.functional.pad(value, (0, width - value.shape[-1]))
        parts = all_gather(given, ranks).reshape(ranks, *value.shape[:-1], width)
        together = parts.movedim(0, -2).reshape(*value.shape[:-1], ranks * width)
        return (
            together if is_even else together.narrow(-1, 0, size).clone(memory_format=torch.contiguous_format)
        )
