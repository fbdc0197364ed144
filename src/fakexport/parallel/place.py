"""One rank among those that share a model, and the collectives it takes part in."""

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
    """

    rank: int
    ranks: int

    def size(self) -> int:
        """Return the number of ranks: the styles of transformers ask a `DeviceMesh` for it."""
        return self.ranks

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks."""
        return all_reduce(value)

    def slice(self, value: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the last dimension, which every rank has in full."""
        start, end = chunk(value.shape[-1], self.ranks, self.rank)
        return value.narrow(-1, start, end - start)

    def gather(self, value: torch.Tensor, size: int) -> torch.Tensor:
        """Return the last dimension in full, from the parts of all ranks.

        Args:
            value: This rank's part, `[..., local]`.
            size: The full size. Where parts differ, they are padded to the widest for the transfer.
        """
        bounds = [chunk(size, self.ranks, rank) for rank in range(self.ranks)]
        widths = [end - start for start, end in bounds]
        is_even = min(widths) == widths[0]
        given = value if is_even else torch.nn.functional.pad(value, (0, widths[0] - value.shape[-1]))
        parts = all_gather(given, self.ranks).reshape(self.ranks, *value.shape[:-1], widths[0])
        if is_even:
            return parts.movedim(0, -2).reshape(*value.shape[:-1], size)
        return torch.cat([parts[rank, ..., :width] for rank, width in enumerate(widths)], -1)
