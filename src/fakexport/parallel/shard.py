"""Which part of a full weight a rank holds: cut as `torch.chunk` and DTensor cut."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import torch

from fakexport.documents import ParallelRecord, Shard


def chunk(size: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return start and end of the part of a rank. Where the ranks do not divide, the last ones have less.

    Example:
        >>> [chunk(10, 4, rank) for rank in range(4)]
        [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    width = -(-size // ranks)
    return min(rank * width, size), min((rank + 1) * width, size)


def shard_of(shape: Iterable[int], dim: int, ranks: int, rank: int, groups: int = 1) -> Shard:
    """Return the part of a rank.

    Args:
        shape: Shape of the full weight.
        dim: The dimension that is cut; negative from the end.
        ranks: How many parts there are.
        rank: Whose part.
        groups: How many weights are packed along the dimension, each of which is cut.
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
    """Return a contiguous copy of the part of a full weight, in the dtype and on the device of it."""
    parts = [full.narrow(shard.dim, start, end - start) for start, end in shard.ranges]
    return (
        parts[0].clone(memory_format=torch.contiguous_format)
        if len(parts) == 1
        else torch.cat(parts, shard.dim)
    )


def local_shapes(record: ParallelRecord, rank: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the sharded weights on a rank, in the order of their names."""
    shards = (record.shards[name] for name in sorted(record.shards))
    return tuple(
        shard_of(shard.shape, shard.dim, record.ranks, rank, len(shard.ranges)).local_shape
        for shard in shards
    )
