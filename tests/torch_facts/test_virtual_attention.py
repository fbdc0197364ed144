"""What `virtual_attention` and `attention_backend` rely on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

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
