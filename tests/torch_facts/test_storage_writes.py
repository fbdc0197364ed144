"""A write through a storage reaches no dispatch mode, and a fake tensor's memory has no data."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.storage_writes import storage_writes


class Copies(torch.nn.Module):
    def forward(self, x):
        y = x * 1
        y.untyped_storage().copy_(torch.zeros(3).untyped_storage())
        return y


def test_stock_refuses_storages_in_a_trace():
    """When this fails, traces need `storage_writes` too."""
    with pytest.raises(NotImplementedError, match="UntypedStorage"):
        torch.export.export(Copies(), (torch.ones(3),))


def test_stock_leaves_writes_out():
    with FakeTensorMode():
        fake = torch.arange(3.0)
        assert fake.untyped_storage().copy_(torch.zeros(3).untyped_storage()).nbytes() == 12


def test_memory_with_data_is_written_as_ever():
    real = torch.arange(3.0)

    with storage_writes(lambda storage: True):
        real.untyped_storage().fill_(0)

    assert real.tolist() == [0, 0, 0]


def test_a_write_is_noted():
    seen = []

    with FakeTensorMode(), storage_writes(lambda storage: not seen.append(storage.nbytes())):
        fake = torch.arange(3.0)
        fake.untyped_storage().byteswap(torch.float32)
        fake.untyped_storage()[0] = 1

    assert seen == [12, 12]
