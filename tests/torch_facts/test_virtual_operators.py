"""What `virtual_operators` relies on: where fake mode runs an operator for real."""

import inspect

import pytest
import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_impls import fast_detach
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import proxy_tensor

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport._torch.kernels import virtual_operators
from fakexport._torch.kernels.virtual_operators import SparseOnVirtualDevice
from fakexport.emulation.devices import emulate
from tests.torch_facts.stock_torch import run_stock

# Torch's own, about compressed layouts.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
is_cpu_wheel = pytest.mark.skipif(torch.version.cuda is not None, reason="asks what a CPU-only wheel does")


def test_torch_calls_the_functions_that_are_replaced_with_these_arguments():
    assert proxy_tensor.unset_fake_temporarily is fake_tensor.unset_fake_temporarily
    assert "unset_fake_temporarily()" in inspect.getsource(proxy_tensor.proxy_call)
    arguments = {
        FakeTensorMode._dispatch_impl: ["self", "func", "types", "args", "kwargs"],
        fake_tensor.run_fallback_kernel: [
            *("fake_mode", "func", "flat_args", "args_spec", "orig_not_implemented_exception")
        ],
    }
    for function, names in arguments.items():
        assert list(inspect.signature(function).parameters) == names


FORWARDS = {
    "'CUDA' backend": "x + torch.tensor(2.0, device=x.device)",
    "could not find kernel for aten.as_strided.default": "x + self.table.sum() + self.rest.sum()",
}


@is_cpu_wheel
@pytest.mark.parametrize("says", FORWARDS)
def test_stock_folds_literals_and_fake_constants_on_the_device_that_they_name(says):
    ended = run_stock(
        "from fakexport._torch.emulation.device_guard import VirtualGuards\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table = torch.arange(4.0, device='cuda')\n"
        "        self.rest = self.table[1:]\n"
        f"    def forward(self, x): return {FORWARDS[says]}\n"
        "with VirtualGuards(['cuda']):\n"
        "    with FakeTensorMode(): model, x = Model(), torch.empty(2, device='cuda')\n"
        "    torch.export.export(model, (x,))"
    )

    assert ended.returncode == 1
    assert says in ended.stderr


class LooksAtOneTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.arange(4.0, device="cuda")
        self.rest = self.table[1:]

    def forward(self, x):
        return x + self.table.sum() + self.rest.sum()


def test_a_fake_attribute_and_a_view_of_it_are_both_lifted():
    with emulate("H100"):
        with new_fake_mode():
            model, x = LooksAtOneTable(), torch.empty(2, device="cuda")
        program = torch.export.export(model, (x,))

    assert {name: tuple(t.shape) for name, t in program.constants.items()} == {"table": (4,), "rest": (3,)}


@is_cpu_wheel
def test_stock_runs_a_kernel_without_a_fake_one_on_the_device():
    ended = run_stock("with FakeTensorMode():\n    torch.geqrf(torch.empty(3, 3, device='cuda'))")

    assert ended.returncode != 0
    assert "CUDA" in ended.stderr


CALLS = {
    "geqrf": torch.geqrf,
    "histogram": lambda x: torch.histogram(x, 4),
    "histogramdd": lambda x: torch.histogramdd(x, [2, 3, 4])[0],
    "sampled_addmm": lambda x: torch.sparse.sampled_addmm(x.to_sparse_csr(), x, x),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_shapes_are_the_cpus_and_the_device_is_the_inputs(call):
    def described(device):
        with FakeTensorMode():
            leaves = torch.utils._pytree.tree_leaves(call(torch.empty(3, 3, device=device)))
        return [(leaf.shape, leaf.dtype, leaf.layout, leaf.device.type) for leaf in leaves]

    on_cpu = described("cpu")

    with emulate("H100"):
        on_device = described("cuda")

    assert on_device == [(*what, "cuda") for *what, _ in on_cpu]


def test_a_kernel_that_would_need_much_memory_is_not_run(monkeypatch):
    monkeypatch.setattr(virtual_operators, "LARGEST_FALLBACK_BYTES", 4)

    with emulate("H100"), FakeTensorMode(), pytest.raises(NotImplementedError, match="no fake impl"):
        torch.geqrf(torch.empty(3, 3, device="cuda"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the real device has the memory")
def test_stock_asks_the_real_device_to_detach_a_sparse_fake_which_is_refused_before_that():
    with emulate("2xH100"), FakeTensorMode() as mode:
        for device in ("cuda", "cuda:1"):
            x = torch.empty(4, 4, device=device).to_sparse()
            with pytest.raises(RuntimeError, match=r"aten::empty\.memory_format|NVIDIA driver"):
                fast_detach(mode, x)
            with pytest.raises(SparseOnVirtualDevice, match=r"a sparse COO tensor on cuda:\d cannot be"):
                x.detach()

        assert torch.empty(4, 4).to_sparse().detach().layout is torch.sparse_coo
        compressed = torch.empty(4, 4, device="cuda").to_sparse_csr()
        assert compressed.detach().device == torch.device("cuda", 0)
