"""Products with fp8 rows: the operators compute what FBGEMM's source says, and transformers calls them."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers.integrations import fbgemm_fp8
from transformers.quantizers import quantizer_fbgemm_fp8

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport._torch.kernels import fbgemm_products

if fbgemm_products.is_fbgemm_installed():
    pytest.skip("FBGEMM's own operators have no kernels for a CPU", allow_module_level=True)
fbgemm_products.register_fbgemm_products()
GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(6, 80, generator=GENERATOR).bfloat16()
WEIGHT = torch.randn(48, 80, generator=GENERATOR).to(torch.float8_e4m3fn)
SCALES = torch.rand(48, 1, generator=GENERATOR) + 0.5
QUANTIZE, PRODUCT = torch.ops.fbgemm.quantize_fp8_per_row, torch.ops.fbgemm.f8f8bf16_rowwise


@pytest.mark.parametrize("bound", [None, 1.0, 1200.0])
def test_each_row_has_a_scale_up_to_the_bound(bound: float | None) -> None:
    """Row for row, as the kernel goes."""
    scale_ub = None if bound is None else torch.tensor([bound])

    quantized, scales = QUANTIZE(ROWS, scale_ub=scale_ub)

    for row, found, scale in zip(ROWS.float(), quantized, scales, strict=True):
        largest = min(max(abs(value) for value in row.tolist()), bound or float("inf"))
        assert float(scale) == pytest.approx(largest / 448, rel=1e-6)
        expected = [min(max(value / float(scale), -448.0), 448.0) for value in row.tolist()]
        assert torch.equal(found.float(), torch.tensor(expected).to(torch.float8_e4m3fn).float())


def test_products_have_both_scales() -> None:
    quantized, scales = QUANTIZE(ROWS)
    exact = (quantized.double() * scales[:, None]) @ (WEIGHT.double() * SCALES).T
    bias = torch.arange(48.0)

    with FlopCounterMode(display=False) as counter:
        found = PRODUCT(quantized, WEIGHT, scales, SCALES, use_fast_accum=True)

    assert counter.get_total_flops() == 2 * 6 * 80 * 48

    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-3)
    shifted = PRODUCT(quantized, WEIGHT, scales, SCALES, bias)
    torch.testing.assert_close(shifted.double(), exact + bias, rtol=2**-8, atol=1e-3)
    batch = PRODUCT(quantized.reshape(2, 3, 80), WEIGHT, scales.reshape(2, 3), SCALES)
    assert torch.equal(batch, found.reshape(2, 3, 48))


def test_fake_tensors_have_the_shape_and_dtype_of_real_ones_and_refuse_what_does_not_match() -> None:
    quantized, row_scales = QUANTIZE(ROWS)
    real = [quantized, row_scales, PRODUCT(quantized, WEIGHT, row_scales, SCALES)]

    with new_fake_mode() as mode:
        rows, weight, scales = map(mode.from_tensor, (ROWS, WEIGHT, SCALES))
        packed, own = QUANTIZE(rows)
        fakes = [packed, own, PRODUCT(packed, weight, own, scales)]
        for wrong, says in (
            ((rows, weight, own, scales), "rows and a weight in float8_e4m3fn"),
            ((packed, weight.mT, own, scales), "do not match"),
            ((packed, weight, own, scales[:2]), "do not match"),
            ((packed, weight.mT.contiguous().mT, own, scales), "contiguous"),
        ):
            with pytest.raises(RuntimeError, match=says):
                PRODUCT(*wrong)
        with pytest.raises(RuntimeError, match="2-d or 3-d"):
            QUANTIZE(rows[0])
        with pytest.raises(NotImplementedError, match="with these arguments"):
            QUANTIZE(rows, output_dtype=torch.float8_e5m2)

    for fake, tensor in zip(fakes, real, strict=True):
        assert (fake.shape, fake.dtype, fake.stride()) == (tensor.shape, tensor.dtype, tensor.stride())


def test_transformers_calls_them_by_these_names() -> None:
    """Where this fails, transformers makes its layers or asks for the package in another way."""
    source = inspect.getsource(fbgemm_fp8)
    for name in ("torch.ops.fbgemm.quantize_fp8_per_row", "torch.ops.fbgemm.f8f8bf16_rowwise"):
        assert name in source
    assert "quantize_fp8_per_row = get_quantize_fp8_per_row()" in source
    assert isinstance(fbgemm_fp8._is_torch_xpu_available, bool)
    asked = inspect.getsource(quantizer_fbgemm_fp8.FbgemmFp8HfQuantizer.validate_environment)
    assert "is_fbgemm_gpu_available()" in asked
    assert callable(quantizer_fbgemm_fp8.is_fbgemm_gpu_available)
