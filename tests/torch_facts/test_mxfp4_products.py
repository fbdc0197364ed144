"""Products with matrices in MXFP4 are dequantized as transformers does it, which is replaced by name."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import integrations
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.quantizers import quantizer_mxfp4

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport._torch.kernels import mxfp4_products

mxfp4_products.register_mxfp4_product()
GENERATOR = torch.Generator().manual_seed(0)
BLOCKS = torch.randint(0, 256, (3, 5, 2, 16), dtype=torch.uint8, generator=GENERATOR)
SCALES = torch.randint(120, 130, (3, 5, 2), dtype=torch.uint8, generator=GENERATOR)
ROWS = torch.randn(6, 64, generator=GENERATOR)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_byte_with_every_scale_has_the_value_that_transformers_computes(dtype: torch.dtype) -> None:
    scales = torch.arange(256, dtype=torch.uint8)[None, :, None].expand(1, 256, 16)
    blocks = torch.arange(256, dtype=torch.uint8).reshape(16, 16).expand(1, 256, 16, 16)

    found = mxfp4_products.dequantized(blocks, scales, dtype)

    assert torch.equal(found.mT, convert_moe_packed_tensors(blocks, scales, dtype=dtype))


@pytest.mark.parametrize("ends", [[2, 2, 6], [0, 0, 0], [6, 6, 6], [1, 3, 4]])
def test_each_row_is_multiplied_with_the_matrix_of_its_group(ends: list[int]) -> None:
    matrices = convert_moe_packed_tensors(BLOCKS, SCALES, dtype=torch.float32)
    expected = torch.zeros(6, 5)
    for group, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
        expected[first:last] = ROWS[first:last] @ matrices[group]
    offs = torch.tensor(ends, dtype=torch.int32)

    with FlopCounterMode(display=False) as counter:
        torch.testing.assert_close(mxfp4_products.grouped_matmul(ROWS, BLOCKS, SCALES, offs), expected)
    assert counter.get_total_flops() == 2 * 6 * 64 * 5
    torch.testing.assert_close(mxfp4_products.composed_packed_product(ROWS, BLOCKS, SCALES, offs), expected)


def test_fake_tensors_have_the_shape_and_dtype_of_real_ones_and_refuse_what_does_not_match() -> None:
    offs = torch.tensor([2, 2, 6], dtype=torch.int32)
    real = mxfp4_products.grouped_matmul(ROWS.half(), BLOCKS, SCALES, offs)
    product = mxfp4_products.grouped_matmul

    with new_fake_mode() as mode:
        rows, blocks, scales, ends = map(mode.from_tensor, (ROWS.half(), BLOCKS, SCALES, offs))
        fake = product(rows, blocks, scales, ends)
        for wrong, says in (
            ((rows[:, :32], blocks, scales, ends), "do not match 2 blocks"),
            ((rows, blocks.mT, scales, ends), "the shapes of MXFP4 blocks"),
            ((rows, blocks, scales, ends[:2]), "the shapes of MXFP4 blocks"),
            ((rows, blocks.int(), scales, ends), "in uint8"),
        ):
            with pytest.raises(RuntimeError, match=says):
                product(*wrong)

    assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


def test_transformers_looks_these_up_where_they_are_replaced() -> None:
    """Where this fails, transformers makes its experts or asks for its kernel in another way."""
    quantizer = quantizer_mxfp4.Mxfp4HfQuantizer
    before = inspect.getsource(quantizer._process_model_before_weight_loading)
    assert "from ..integrations import replace_with_mxfp4_linear" in before
    assert callable(integrations.replace_with_mxfp4_linear)
    asked = inspect.getsource(quantizer.validate_environment)
    for name in ("is_triton_available", "is_kernels_available"):
        assert name in asked
        assert callable(getattr(quantizer_mxfp4, name))
