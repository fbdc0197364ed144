"""Products with fp8 matrices: the operators compute what is said of the kernel that transformers fetches."""

from __future__ import annotations

import inspect

import pytest
import torch
from transformers.integrations import finegrained_fp8

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport._torch.kernels import fp8_products
from fakexport._torch.operators.operator_registry import registered_overload

fp8_products.register_fp8_products()
GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(6, 80, generator=GENERATOR).bfloat16()
BLOCK = [32, 32]


def weight(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix in fp8 and the scales of its blocks, of which the last ones are cut."""
    scales = torch.rand(-(-rows // 32), -(-columns // 32), generator=GENERATOR) + 0.5
    return torch.randn(rows, columns, generator=GENERATOR).to(torch.float8_e4m3fn), scales


def reference(rows: torch.Tensor, matrix: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Block for block, as the kernel goes through the columns."""
    result = torch.zeros(rows.shape[0], matrix.shape[0])
    for start in range(0, rows.shape[1], 32):
        part = rows[:, start : start + 32].float()
        largest = part.abs().amax(dim=1, keepdim=True) / 448
        rounded = (part / largest).to(torch.float8_e4m3fn).float()
        for first in range(0, matrix.shape[0], 32):
            block = matrix[first : first + 32, start : start + 32].float()
            result[:, first : first + 32] += (rounded @ block.T) * largest * scales[first // 32, start // 32]
    return result.to(rows.dtype)


def test_blocks_of_rows_and_columns_have_their_own_scale() -> None:
    matrix, scales = weight(48, 80)

    found = fp8_products.matmul(ROWS, matrix, scales, BLOCK, torch.bfloat16)

    torch.testing.assert_close(found, reference(ROWS, matrix, scales))
    assert not fp8_products.matmul(torch.zeros(2, 80), matrix, scales, BLOCK).any()
    in_float32 = fp8_products.matmul(ROWS, matrix, scales, BLOCK, torch.float32)
    assert in_float32.dtype is torch.float32
    assert torch.equal(fp8_products.matmul(ROWS[None], matrix, scales, BLOCK), found[None])


def test_one_scale_for_all() -> None:
    matrix, _ = weight(48, 80)
    scale, static = torch.tensor(0.5), torch.tensor(0.01)

    of_weight = fp8_products.matmul(ROWS, matrix, scale, None)
    given = fp8_products.matmul(ROWS, matrix, torch.full((2, 3), 0.5), BLOCK, None, static)

    exact = ROWS.float() @ (matrix.float() * 0.5).T
    for found in (of_weight, given):
        assert (found - exact).norm() < 0.05 * exact.norm()
    rounded = (ROWS.float() / static).clamp(-448, 448).to(torch.float8_e4m3fn).float() * static
    torch.testing.assert_close(given, (rounded @ (matrix.float() * 0.5).T).bfloat16())


def test_one_scale_for_a_weight_and_one_for_all_activations_is_refused_as_the_kernel_does() -> None:
    matrix, _ = weight(48, 80)

    for blocks in (None, [48, 80]):
        with pytest.raises(NotImplementedError, match="static activation scales"):
            fp8_products.matmul(ROWS, matrix, torch.tensor(0.5), blocks, None, torch.tensor(0.01))


def test_each_row_is_multiplied_with_the_matrix_of_its_group() -> None:
    made = [weight(32, 64) for _ in range(3)]
    matrices, scales = torch.stack([m for m, _ in made]), torch.stack([s for _, s in made])
    rows, experts = ROWS[:, :64].contiguous(), torch.tensor([0, 0, 2, 2, 2, 2])
    expected = torch.cat([reference(rows[[i]], *made[e]) for i, e in enumerate(experts.tolist())])

    grouped = fp8_products.grouped_matmul(
        rows, matrices, scales, torch.tensor([2, 2, 6]), torch.tensor([2, 0, 4]), BLOCK
    )
    batched = fp8_products.batched_matmul(rows, matrices, scales, BLOCK, experts)

    torch.testing.assert_close(grouped, expected)
    torch.testing.assert_close(batched, expected)


def test_fake_tensors_have_the_shape_and_dtype_of_real_ones() -> None:
    matrix, scales = weight(48, 80)
    real = fp8_products.matmul(ROWS, matrix, scales, BLOCK, torch.float32)

    with new_fake_mode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in (ROWS, matrix, scales)]
        fake = fp8_products.matmul(*fakes, BLOCK, torch.float32)
        with pytest.raises(RuntimeError, match="contiguous"):
            fp8_products.matmul(fakes[0].t().contiguous().t(), fakes[1], fakes[2], BLOCK)

    assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


def test_transformers_calls_them_by_these_names() -> None:
    """Where this fails, transformers calls its kernel in another way."""
    for operator in ("matmul_2d", "matmul_batched", "matmul_grouped"):
        assert operator in inspect.getsource(finegrained_fp8._load_finegrained_fp8_kernel)
    fields = list(inspect.signature(finegrained_fp8.FineGrainedFP8).parameters)
    assert fields == ["matmul", "batched_matmul", "grouped_matmul"]
    assert callable(finegrained_fp8.load_finegrained_fp8_kernel)
    assert callable(finegrained_fp8.is_deepgemm_loadable)
    assert registered_overload("finegrained_fp8", "w8a8_block_dynamic_fp8_matmul", "default") is not None


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""The numbers of four bits, by the OCP Microscaling Formats specification 1.0, table 5."""


def mx_weight(experts: int, rows: int, columns: int, *, is_fp4: bool) -> tuple[torch.Tensor, ...]:
    """Matrices in an MX format, their scales, and what they stand for in float32."""
    scales = torch.randint(120, 134, (experts, rows, columns // 32), generator=GENERATOR)
    powers = (2.0 ** (scales - 127)).repeat_interleave(32, dim=-1)
    if is_fp4:
        codes = torch.randint(0, 16, (experts, rows, columns), generator=GENERATOR)
        values = torch.where(codes < 8, 1.0, -1.0) * E2M1[codes % 8]
        stored = (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8).view(torch.int8)
    else:
        stored = torch.randn(experts, rows, columns, generator=GENERATOR).to(torch.float8_e4m3fn)
        values = stored.float()
    return stored, scales.to(torch.uint8).view(torch.float8_e8m0fnu), values * powers


@pytest.mark.parametrize("is_fp4", [True, False], ids=["mxfp4", "mxfp8"])
def test_mx_formats_have_a_power_of_two_for_32_columns(is_fp4: bool) -> None:
    stored, scales, exact = mx_weight(3, 48, 64, is_fp4=is_fp4)
    rows, experts = ROWS[:, :64].contiguous(), torch.tensor([0, 0, 2, 2, 2, 2])
    parts = rows.float().unflatten(1, (2, 32))
    powers = 2.0 ** torch.ceil(torch.log2(parts.abs().amax(dim=-1, keepdim=True) / 448))
    rounded = ((parts / powers).to(torch.float8_e4m3fn).float() * powers).flatten(1)
    expected = torch.stack([exact[e] @ row for e, row in zip(experts.tolist(), rounded, strict=True)])

    grouped = fp8_products.grouped_matmul(
        rows, stored, scales, torch.tensor([2, 2, 6]), torch.tensor([2, 0, 4]), None
    )
    batched = fp8_products.batched_matmul(rows, stored, scales, [32, 32], experts)
    single = fp8_products.matmul(rows[:2], stored[0], scales[0], None, torch.float32)

    torch.testing.assert_close(grouped, expected.bfloat16())
    torch.testing.assert_close(batched, expected.bfloat16())
    torch.testing.assert_close(single, expected[:2])


def test_fake_rows_of_an_mx_format_have_the_shape_of_real_ones() -> None:
    stored, scales, _ = mx_weight(3, 48, 64, is_fp4=True)
    ends, counts = torch.tensor([2, 2, 6]), torch.tensor([2, 0, 4])
    rows = ROWS[:, :64].contiguous()
    real = fp8_products.grouped_matmul(rows, stored, scales, ends, counts, None)

    with new_fake_mode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in (rows, stored, scales, ends, counts)]
        fake = fp8_products.grouped_matmul(*fakes, None)
        with pytest.raises(RuntimeError, match="do not match a weight"):
            fp8_products.grouped_matmul(mode.from_tensor(ROWS), *fakes[1:], None)

    assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


def test_four_bits_with_other_scales_are_refused_as_the_kernel_does() -> None:
    stored, scales, _ = mx_weight(3, 48, 64, is_fp4=True)

    for other in (scales.float(), scales[..., :1].contiguous()):
        with pytest.raises(NotImplementedError, match=r"weights of torch\.int8 with scales"):
            fp8_products.batched_matmul(ROWS[:, :64].contiguous(), stored, other, None, torch.zeros(6).long())
