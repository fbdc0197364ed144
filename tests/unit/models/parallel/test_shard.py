"""A rank's part of a weight, compared with `torch.chunk`, by which DTensor cuts."""

import pytest
import torch

from fakexport.models.parallel.shard import part_of, shard_of


@pytest.mark.parametrize("size", [8, 10, 101])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_parts_are_those_of_chunk(size, dim):
    full = torch.arange(size * size).reshape(size, size)
    expected = torch.chunk(full, 4, dim)

    for rank, part in enumerate(expected):
        shard = shard_of(full.shape, dim, 4, rank)

        assert torch.equal(part_of(full, shard), part)
        assert shard.local_shape == tuple(part.shape)


def test_each_packed_weight_is_cut():
    gate, up = torch.randn(6, 3), torch.randn(6, 3)

    for rank in range(2):
        part = part_of(torch.cat((gate, up)), shard_of((12, 3), 0, 2, rank, groups=2))

        assert torch.equal(part, torch.cat((gate.chunk(2)[rank], up.chunk(2)[rank])))
