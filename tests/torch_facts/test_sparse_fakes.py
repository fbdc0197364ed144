"""What `_torch/sparse_fakes.py` relies on."""

import pytest
import torch
from torch._subclasses.fake_impls import fast_detach
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.sparse_fakes import SparseOnVirtualDevice
from fakexport.devices import emulate

# Torch's own, about compressed layouts.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the real device has the memory")
def test_stock_asks_the_real_device_to_detach_a_sparse_fake():
    with emulate("H100"), FakeTensorMode() as mode:
        x = torch.empty(4, 4, device="cuda").to_sparse()

        with pytest.raises(RuntimeError, match=r"aten::empty\.memory_format|NVIDIA driver"):
            fast_detach(mode, x)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_sparse_fake_on_a_virtual_device_is_refused_before_that(device):
    with emulate("2xH100"), FakeTensorMode():
        x = torch.empty(4, 4, device=device).to_sparse()

        with pytest.raises(SparseOnVirtualDevice, match=r"a sparse COO tensor on cuda:\d cannot be traced"):
            x.detach()


def test_sparse_fakes_on_the_cpu_and_compressed_ones_are_detached():
    with emulate("H100"), FakeTensorMode():
        on_cpu = torch.empty(4, 4).to_sparse()
        compressed = torch.empty(4, 4, device="cuda").to_sparse_csr()

        assert on_cpu.detach().layout is torch.sparse_coo
        assert compressed.detach().device == torch.device("cuda", 0)
