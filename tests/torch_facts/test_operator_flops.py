"""What `operator_flops` relies on: torch's formulas take symbolic sizes; what they miss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from fakexport._torch.costs.operator_flops import call_products, has_formula

aten = torch.ops.aten
COUNTS_ATTENTION_ON_CPU = torch.__version__ >= "2.15"


def _flops(operator: Any, *shapes: tuple[int, ...], **kwargs: Any) -> list[tuple[str, Any, Any]]:
    mode = FakeTensorMode()
    with mode:
        tensors = [torch.empty(shape) for shape in shapes]
        result = operator(*tensors, **kwargs)
    found = call_products(mode, operator, tensors, kwargs, result)
    return [(product.operator, product.flops, product.least) for product in found]


def test_formulas_take_symbolic_sizes() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    first = mode.from_tensor(torch.empty(5, 7))
    second = mode.from_tensor(torch.empty(7, 3))

    (product,) = call_products(mode, aten.mm.default, [first, second], {}, None)

    assert isinstance(product.flops, torch.SymInt)
    assert int(product.flops) == 2 * 5 * 7 * 3


def test_a_composite_operator_runs_those_with_formulas() -> None:
    assert _flops(aten.matmul.default, (2, 3, 4), (2, 4, 5)) == [("aten.bmm.default", 240, 240)]


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_on_the_cpu_counts_whatever_torch_counts(is_causal: bool) -> None:
    query = torch.zeros(2, 4, 6, 8)

    def count(backend: SDPBackend) -> int:
        with sdpa_kernel(backend), FlopCounterMode(display=False) as counter, torch.no_grad():
            torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=is_causal)
        return counter.get_total_flops()

    assert count(SDPBackend.FLASH_ATTENTION) == (count(SDPBackend.MATH) if COUNTS_ATTENTION_ON_CPU else 0)
    ((_, flops, least),) = _flops(
        aten.scaled_dot_product_attention.default, *[(2, 4, 6, 8)] * 3, is_causal=is_causal
    )
    assert flops == count(SDPBackend.MATH)
    assert least == (flops * 7 // 12 if is_causal else flops)


@pytest.mark.parametrize(
    "packet", [aten._grouped_mm, aten._int_mm, aten._scaled_dot_product_flash_attention_for_cpu]
)
def test_what_torch_has_no_formula_for_has_one_here(packet: Any) -> None:
    counts = COUNTS_ATTENTION_ON_CPU and packet is aten._scaled_dot_product_flash_attention_for_cpu
    assert (packet in flop_registry) == counts
    assert has_formula(packet)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_convolutions_take_one_multiplication_per_tap(groups: int, is_transposed: bool) -> None:
    convolution = torch.nn.ConvTranspose2d if is_transposed else torch.nn.Conv2d
    layer = convolution(4, 8, 3, groups=groups, bias=False)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(torch.zeros(2, 4, 9, 9))

    positions = 9 * 9 if is_transposed else 7 * 7
    assert counter.get_total_flops() == 2 * 2 * 4 * 8 * 9 * positions // groups
