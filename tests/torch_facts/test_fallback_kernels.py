"""Operators without a meta kernel: fake mode runs their real kernel, on the device of the tensors."""

import inspect

import pytest
import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch import fallback_kernels
from fakexport.devices import emulate
from tests.torch_facts.stock_torch import run_stock

is_cpu_wheel = pytest.mark.skipif(torch.version.cuda is not None, reason="asks what a CPU-only wheel does")


def test_the_fallback_takes_what_we_take():
    assert list(inspect.signature(fake_tensor.run_fallback_kernel).parameters) == [
        "fake_mode",
        "func",
        "flat_args",
        "args_spec",
        "orig_not_implemented_exception",
    ]


@is_cpu_wheel
def test_stock_runs_the_kernel_on_the_device():
    ended = run_stock("with FakeTensorMode():\n    torch.geqrf(torch.empty(3, 3, device='cuda'))")

    assert ended.code != 0
    assert "CUDA" in ended.error


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.geqrf(x),
        lambda x: torch.histogram(x, 4),
        lambda x: torch.histogramdd(x, [2, 3, 4])[0],
        lambda x: torch.sparse.sampled_addmm(x.to_sparse_csr(), x, x),
    ],
    ids=["geqrf", "histogram", "histogramdd", "sampled_addmm"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_shapes_are_the_cpus_and_the_device_is_the_inputs(call):
    def described(device: str) -> list[tuple[object, ...]]:
        with FakeTensorMode():
            leaves = torch.utils._pytree.tree_leaves(call(torch.empty(3, 3, device=device)))
        return [(leaf.shape, leaf.dtype, leaf.layout, leaf.device.type) for leaf in leaves]

    on_cpu = described("cpu")

    with emulate("H100"):
        on_device = described("cuda")

    assert on_device == [(*what, "cuda") for *what, _ in on_cpu]


def test_a_kernel_that_would_need_much_memory_is_not_run(monkeypatch):
    monkeypatch.setattr(fallback_kernels, "LARGEST_FALLBACK_BYTES", 4)

    with emulate("H100"), FakeTensorMode(), pytest.raises(NotImplementedError, match="no fake impl"):
        torch.geqrf(torch.empty(3, 3, device="cuda"))
