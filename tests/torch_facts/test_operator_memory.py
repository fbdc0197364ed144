"""What `fakexport._torch.operator_memory` relies on: storages of fakes live and die as real ones do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.operator_memory import CallMemory, call_memory, is_composite

aten = torch.ops.aten


def _memory(operator: Any, sizes: tuple[int, ...], *, is_turned: bool = False, **kwargs: Any) -> CallMemory:
    mode = FakeTensorMode()
    with mode:
        tensor = torch.empty(sizes)
        tensor = tensor.t() if is_turned else tensor
    return call_memory(mode, operator, [tensor], kwargs, lambda *call: ())


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (aten.reshape.default, True),
        (aten.contiguous.default, True),
        (aten.matmul.default, True),
        (aten.dropout.default, True),
        (aten.view.default, False),
        (aten.add.Tensor, False),
        (aten.mm.default, False),
    ],
)
def test_the_dispatcher_says_which_operators_are_made_of_others(operator: Any, expected: bool) -> None:
    assert is_composite(operator) is expected


def test_a_view_is_in_the_memory_of_its_argument() -> None:
    memory = _memory(aten.reshape.default, (4, 6), shape=[24])

    assert memory == CallMemory((), (), (~0,))


def test_a_copy_has_memory_of_its_own() -> None:
    memory = _memory(aten.reshape.default, (4, 6), is_turned=True, shape=[24])

    assert [(taken.operator, taken.bytes) for taken in memory.allocations] == [("aten.clone.default", 96)]
    assert (memory.events, memory.outputs) == ((0,), (0,))


def test_what_a_composite_operator_drops_dies_before_it_returns() -> None:
    memory = _memory(aten.layer_norm.default, (5, 8), normalized_shape=[8])

    assert [taken.bytes for taken in memory.allocations] == [160, 20, 20]
    assert (memory.events[:3], sorted(memory.events[3:]), memory.outputs) == ((0, 1, 2), [~2, ~1], (0,))


def test_the_bias_of_a_linear_layer_is_added_in_place() -> None:
    mode = FakeTensorMode()
    with mode:
        tensor, weight, bias = torch.empty(5, 3, 8).transpose(0, 1), torch.empty(16, 8), torch.empty(16)
    called: list[str] = []

    def note(operator: Any, *call: Any) -> tuple[()]:
        called.append(str(operator))
        return ()

    memory = call_memory(mode, aten.linear.default, [tensor, weight, bias], {}, note)

    assert "aten.add.Tensor" in called  # In a real run it is `aten.add_`.
    assert [taken.bytes for taken in memory.allocations] == [3 * 5 * 16 * 4]
    assert memory.outputs == (0,)


def test_memory_that_is_not_known_names_its_operator() -> None:
    mode = FakeTensorMode()
    with mode:
        tensor = torch.empty(5, 3)

    memory = call_memory(mode, aten.cos.default, [tensor], {}, lambda *call: [("cpu", 8), ("cpu", None)])

    assert memory.unknown == ("aten.cos.default",)
    assert [taken.bytes for taken in memory.allocations] == [60, 8]
