"""The attention kernel that a device would take shows in the strides of its output.

The expected choices were counted on an H200 with torch 2.11, or are read off
`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` and the wheels of other releases.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_proof import attention as proof
from fakexport._torch.emulation import attention_backend
from fakexport._torch.emulation.attention_backend import Attention, AttentionDevice, choose_backend
from fakexport.emulation.devices import emulate

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
V100, T4, A100, L40S, H100, B200 = (7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0)


def call(capability, dtype, *, head_dim=64, mask=None, kv_heads=4, kv_length=16, is_rocm=False, **options):
    def heads(count, length):
        shape = (options.get("batch", 2), length, count, head_dim)
        offset, size = options.get("offset", 0), torch.Size(shape).numel()
        flat = torch.empty(offset + size, dtype=dtype, device="meta")[offset:]
        return flat.view(shape).transpose(1, 2).requires_grad_(options.get("requires_grad", False))

    return Attention(
        heads(4, 16),
        heads(kv_heads, kv_length),
        heads(kv_heads, kv_length),
        mask,
        options.get("dropout", 0.0),
        options.get("is_causal", False),
        AttentionDevice("cuda", capability, is_rocm) if isinstance(capability, tuple) else capability,
        options.get("allows_groups", False),
    )


def mask(*shape, dtype=torch.bool):
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        pytest.param(call(A100, HALF), "flash", id="Ampere, half"),
        pytest.param(call(A100, BRAIN), "flash", id="Ampere, bfloat16"),
        pytest.param(call(A100, SINGLE), "efficient", id="flash knows no float32"),
        pytest.param(call(A100, DOUBLE), "math", id="no fused kernel knows float64"),
        pytest.param(call(T4, HALF), "efficient", id="flash starts with Ampere"),
        pytest.param(call(T4, BRAIN), "math", id="Turing has no bfloat16"),
        pytest.param(call(V100, SINGLE), "efficient", id="Volta, float32"),
        pytest.param(call(H100, BRAIN), "cudnn", id="Hopper prefers cuDNN"),
        pytest.param(call(B200, HALF), "cudnn", id="Blackwell prefers cuDNN"),
        pytest.param(call(H100, SINGLE), "efficient", id="cuDNN knows no float32"),
        pytest.param(call(H100, BRAIN, head_dim=256), "cudnn", id="cuDNN on Hopper ends at 256"),
        pytest.param(call(H100, BRAIN, head_dim=264), "efficient", id="cuDNN and flash end at 256"),
        pytest.param(call((8, 0), BRAIN, head_dim=136), "flash", id="elsewhere cuDNN ends at 128"),
        pytest.param(call(A100, BRAIN, head_dim=264), "efficient", id="flash ends at 256"),
        pytest.param(call(A100, BRAIN, head_dim=20), "flash", id="flash pads the head"),
        pytest.param(call(A100, SINGLE, head_dim=6), "math", id="efficient wants aligned heads"),
        pytest.param(call(A100, BRAIN, mask=mask(2, 1, 16, 16)), "efficient", id="flash takes no mask"),
        pytest.param(call(H100, BRAIN, mask=mask(2, 1, 16, 16)), "cudnn", id="cuDNN takes a mask"),
        pytest.param(
            call(H100, BRAIN, mask=mask(2, 1, 16, 1).expand(2, 1, 16, 16)), "math", id="mask of stride 0"
        ),
        pytest.param(call(A100, HALF, is_causal=True, kv_length=8), "efficient", id="causal, not square"),
        pytest.param(call(A100, HALF, kv_heads=2), "math", id="groups not allowed"),
        pytest.param(call(A100, HALF, kv_heads=2, allows_groups=True), "flash", id="groups allowed"),
        pytest.param(call((9, 4), HALF, is_rocm=True), "flash", id="MI300X has no cuDNN"),
        pytest.param(call((9, 4), SINGLE, is_rocm=True), "efficient", id="MI300X, float32"),
        pytest.param(call(AttentionDevice("xpu"), HALF), "overrideable", id="Intel, half"),
        pytest.param(call(AttentionDevice("xpu"), DOUBLE), "math", id="Intel, float64"),
        pytest.param(
            call(AttentionDevice("xpu"), HALF, mask=mask(2, 1, 16, 1).expand(2, 1, 16, 16)),
            "math",
            id="Intel, mask of stride 0",
        ),
        pytest.param(
            replace(call(AttentionDevice("xpu"), HALF), value=mask(2, 4, 16, 584, dtype=HALF)),
            "math",
            id="Intel, a value with a large head",
        ),
        pytest.param(call(AttentionDevice("mps"), HALF), "math", id="Apple"),
    ],
)
def test_the_kernel_is_the_one_that_cuda_would_choose(attention, expected):
    assert choose_backend(attention) == expected


DROPOUT = {"dropout": 0.1}


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        (call(H100, BRAIN, **DROPOUT), {(2, 11): "cudnn", (2, 12): "flash", (2, 15): "flash"}),
        (call(B200, BRAIN, head_dim=256), {(2, 13): "flash", (2, 14): "cudnn"}),
        (
            call(H100, BRAIN, head_dim=192, requires_grad=True),
            {(2, 13): "cudnn", (2, 14): "flash"},
        ),
        (call(H100, BRAIN, head_dim=256, requires_grad=True), {(2, 13): "cudnn", (2, 14): "cudnn"}),
        (call(A100, SINGLE, kv_heads=2, allows_groups=True), {(2, 13): "math", (2, 14): "efficient"}),
        (call(A100, SINGLE, kv_heads=2), {(2, 13): "math", (2, 14): "math"}),
        (call(A100, SINGLE, kv_heads=1), {(2, 13): "math", (2, 14): "efficient"}),
        (call(A100, HALF, kv_heads=1), {(2, 13): "math", (2, 14): "flash"}),
        (call(A100, SINGLE, offset=1), {(2, 12): "efficient", (2, 13): "math"}),
        (call(T4, SINGLE, offset=1), {(2, 12): "efficient", (2, 13): "efficient"}),
        (call(A100, HALF, batch=65536), {(2, 14): "flash", (2, 15): "efficient"}),
        (call(H100, HALF, batch=65536), {(2, 12): "cudnn", (2, 13): "flash", (2, 15): "efficient"}),
    ],
)
def test_the_rules_are_those_of_the_release(attention, expected, monkeypatch):
    for release, backend in expected.items():
        monkeypatch.setattr(attention_backend, "_RELEASE", release)

        assert choose_backend(attention) == backend, release


@pytest.mark.parametrize(
    ("dtype", "counts"),
    [
        ("bfloat16", {"cudnn": 2352, "flash": 888, "efficient": 1296, "math": 1464}),
        ("float32", {"efficient": 4000, "math": 2000}),
    ],
)
def test_each_backend_is_chosen_as_often_as_on_an_h200(dtype, counts, monkeypatch):
    """The counts were measured on an NVIDIA H200 with torch 2.11.0+cu130."""
    monkeypatch.setattr(attention_backend, "_RELEASE", (2, 11))
    device, found = AttentionDevice("cuda", (9, 0)), Counter()

    for case in (case for case in proof.cases() if case.dtype == dtype):
        tensors = proof.tensors_of(case, "meta")
        is_grouped = len(set(case.heads)) > 1
        attention = Attention(*tensors, case.dropout, case.mask == "causal", device, is_grouped)
        found[choose_backend(attention)] += 1

    assert found == counts


def test_the_users_choice_of_kernels_is_honoured():
    with sdpa_kernel([SDPBackend.MATH]):
        assert choose_backend(call(H100, BRAIN)) == "math"
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        assert choose_backend(call(H100, BRAIN)) == "efficient"


@pytest.mark.parametrize(("topology", "is_fused"), [("T4", False), ("A100", True), ("H100", True)])
def test_a_fused_kernel_keeps_the_layout_of_the_query(topology, is_fused):
    with emulate(topology), FakeTensorMode():
        query = torch.empty(2, 16, 4, 64, dtype=BRAIN, device="cuda", requires_grad=True).transpose(1, 2)
        padded = torch.empty(2, 4, 16, 20, dtype=HALF, device="cuda")

        assert F.scaled_dot_product_attention(padded, padded, padded).shape == padded.shape
        output = F.scaled_dot_product_attention(query, query, query)

    assert output.device == torch.device("cuda", 0)
    assert output.dtype is BRAIN
    assert output.requires_grad
    assert (output.stride() == query.stride()) == is_fused
    assert output.is_contiguous() == (not is_fused)


def test_cpu_tensors_take_the_cpus_own_way():
    query = torch.randn(2, 4, 16, 64)
    plain = F.scaled_dot_product_attention(query, query, query)

    with emulate("H100"):
        inside = F.scaled_dot_product_attention(query, query, query)

    assert torch.equal(plain, inside)
