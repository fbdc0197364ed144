"""FE507: attention that has no fused kernel on the target only because of strides."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import ViTConfig, ViTModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

import fakexport as fe


def found(factory, target="H100", **options):
    report = fe.check(factory, target=target, **options)
    assert all(verdict.is_exportable for verdict in report.verdicts)
    return [diagnostic for diagnostic in report.diagnostics if diagnostic.code == "FE507"]


class Attention(nn.Module):
    def forward(self, query, key, value, mask=None):
        return F.scaled_dot_product_attention(query, key, value, mask)


def expanded():
    return torch.ones((), dtype=torch.bool).expand(2, 1, 32, 32)


def attention(mask=None, dtype=torch.float32, is_transposed=False):
    def tensor():
        shape = (2, 4, 64, 32) if is_transposed else (2, 4, 32, 64)
        made = torch.zeros(shape, dtype=dtype)
        return made.transpose(2, 3) if is_transposed else made

    return lambda: (Attention().eval(), (tensor(), tensor(), tensor(), mask))


@pytest.mark.parametrize(("dtype", "dynamic"), [(torch.float32, None), (torch.bfloat16, "auto")])
def test_an_expanded_mask_is_named_with_the_kernel_that_a_contiguous_one_takes(dtype, dynamic):
    (diagnostic,) = found(attention(expanded(), dtype=dtype), dynamic_shapes=dynamic)

    kernel = "efficient" if dtype is torch.float32 else "cudnn"
    assert diagnostic.labels[0].message == "`attn_mask`: stride 0 in the last dimension"
    assert diagnostic.notes[0] == (
        "on H100-80GB, this call runs without a fused kernel; with stride 1, it would take the "
        f"{kernel} kernel"
    )


def test_transposed_tensors_are_named():
    (diagnostic,) = found(attention(is_transposed=True))

    assert diagnostic.labels[0].message == "`query`, `key`, `value`: stride 32 in the last dimension"


class Harmless(nn.Module):
    """Attention that takes a fused kernel on an H100, or has none whatever its strides are."""

    def forward(self, x, odd):
        allowed = torch.ones((), dtype=torch.bool, device=x.device)
        columns = torch.ones(2, 1, 1, 32, dtype=torch.bool, device=x.device)
        return (
            F.scaled_dot_product_attention(x, x, x),
            F.scaled_dot_product_attention(x, x, x, allowed.expand(2, 1, 32, 32).contiguous()),
            F.scaled_dot_product_attention(x, x, x, columns.expand(2, 1, 32, 32)),
            F.scaled_dot_product_attention(odd, odd, odd, allowed.expand(2, 1, 32, 32)),
        )


def test_harmless_strides_are_not_reported():
    assert found(lambda: (Harmless(), (torch.zeros(2, 4, 32, 64), torch.zeros(2, 4, 32, 10)))) == []


def test_a_device_without_a_fused_kernel_for_the_dtype_is_not_reported():
    for target in ("cpu", "T4"):
        assert found(attention(expanded(), dtype=torch.bfloat16), target) == []


@pytest.mark.parametrize("is_repaired", [False, True])
def test_the_page_s_repair_of_a_model_of_transformers_works(monkeypatch, is_repaired):
    def contiguous_mask(*args, **kwargs):
        mask = sdpa_mask(*args, **kwargs)
        return mask if mask is None else mask.contiguous()

    def factory():
        if is_repaired:
            monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "sdpa", contiguous_mask)
        config = ViTConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32
        )
        return ViTModel(config).eval(), (torch.zeros(1, 3, 32, 32),)

    assert bool(found(factory)) is not is_repaired
