"""What `virtual_attention` and `attention_backend` rely on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from fakexport._torch.emulation.attention_backend import Attention, AttentionDevice, choose_backend
from fakexport._torch.kernels.virtual_attention import virtual_attention
from fakexport.emulation.devices import emulate

OPERATOR = torch.ops.aten.scaled_dot_product_attention.default


def has_kernel(key):
    return torch._C._dispatch_has_kernel_for_dispatch_key(OPERATOR.name(), key)


def test_attention_is_composite_so_a_devices_own_kernel_comes_first_and_is_gone_afterwards():
    assert has_kernel("CompositeImplicitAutograd")
    assert not has_kernel("AutogradCUDA")

    with virtual_attention(lambda device: None):
        assert has_kernel("AutogradCUDA")

    assert not has_kernel("AutogradCUDA")


def test_the_fused_kernels_have_meta_functions_with_the_querys_layout():
    with emulate("H100"), FakeTensorMode():
        q = torch.empty(2, 16, 4, 64, dtype=torch.bfloat16, device="cuda").transpose(1, 2)
        outputs = [
            torch.ops.aten._scaled_dot_product_flash_attention(q, q, q)[0],
            torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, None, False)[0],
            torch.ops.aten._scaled_dot_product_cudnn_attention(q, q, q, None, False)[0],
            torch.ops.aten._scaled_dot_product_fused_attention_overrideable(q, q, q)[0],
        ]

    assert {output.stride() for output in outputs} == {q.stride()}


def test_the_plain_kernel_is_what_stock_takes_without_a_device():
    with emulate("T4"), FakeTensorMode():
        q = torch.empty(2, 16, 4, 64, dtype=torch.bfloat16, device="cuda").transpose(1, 2)
        known = AttentionDevice("cuda", (7, 5))

        assert choose_backend(Attention(q, q, q, None, 0.0, False, known, False)) == "math"
        assert F.scaled_dot_product_attention(q, q, q).is_contiguous()


class Biases(TorchDispatchMode):
    """Records the bias of each attention kernel."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if "scaled_dot_product" in operator.__name__:
            self.seen[operator.__name__.removeprefix("_scaled_dot_product_")] = args[3]
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("target", "dtype", "kernel"),
    [
        ("H100", torch.bfloat16, "cudnn_attention.default"),
        ("A100", torch.bfloat16, "efficient_attention.default"),
        ("H100", torch.float32, "efficient_attention.default"),
    ],
)
def test_no_kernel_gets_a_boolean_mask(target, dtype, kernel):
    """A kernel would add True as 1 to the scores (huggingface/diffusers#14342)."""
    with emulate(target), FakeTensorMode(), Biases() as biases:
        q = torch.empty(2, 4, 16, 64, dtype=dtype, device="cuda")
        mask = torch.ones(16, 16, dtype=torch.bool, device="cuda")
        F.scaled_dot_product_attention(q, q, q, mask)

    assert list(biases.seen) == [kernel]
    assert biases.seen[kernel].dtype == dtype
