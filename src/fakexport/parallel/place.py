"""A rank among those that share a model, and the collectives that it takes part in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fakexport._torch.functional_collectives import all_gather, all_reduce

from .shard import chunk


@dataclass(frozen=True)
class Place:
    """A rank, and how many there are.

    Args:
        rank: From 0.
        ranks: Processes that share the model.
        has_whole: The weights stay whole. The traced program has the nodes of a rank's program with the sizes
            of the model. It is compared with the programs of the ranks, and never runs.
    """

    rank: int
    ranks: int
    has_whole: bool = False

    def size(self) -> int:
        """Return over how many ranks weights are sharded: transformers asks a `DeviceMesh` for it."""
        return 1 if self.has_whole else self.ranks

    def bounds(self, size: int) -> tuple[int, int]:
        """Return start and end of the part of a dimension that this rank holds."""
        return (0, size) if self.has_whole else chunk(size, self.ranks, self.rank)

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks."""
        return all_reduce(value)

    def slice(self, value: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the last dimension, which every rank has in full."""
        start, end = self.bounds(value.shape[-1])
        return value.narrow(-1, start, end - start)

    def gather(self, value: torch.Tensor, size: int) -> torch.Tensor:
        """Return the last dimension in full, from the parts of all ranks.

        Args:
            value: This rank's part, `[..., local]`.
            size: The full size. Where parts differ, they are padded to the widest for the transfer.
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
