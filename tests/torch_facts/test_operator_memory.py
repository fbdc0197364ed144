"""What `operator_memory` relies on: storages of fakes live and die as real ones do, and torch's constants."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.costs import operator_memory
from fakexport._torch.costs.operator_memory import (
    CallMemory,
    call_memory,
    is_composite,
    is_computed_by_onednn,
)

aten = torch.ops.aten
HEADER = Path(torch.__file__).parent / "include" / "c10" / "core" / "AllocatorConfig.h"


def memory_of(operator, *tensors, workspace=lambda *call: (), **kwargs):
    mode = FakeTensorMode()
    with mode:
        fakes = [make() for make in tensors]
    return call_memory(mode, operator, fakes, kwargs, workspace)


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        *((each, True) for each in (aten.reshape.default, aten.contiguous.default, aten.matmul.default)),
        *((each, False) for each in (aten.view.default, aten.add.Tensor, aten.mm.default)),
    ],
)
def test_the_dispatcher_says_which_operators_are_made_of_others(operator, expected):
    assert is_composite(operator) is expected


def test_a_view_is_in_the_memory_of_its_argument_and_a_copy_in_its_own():
    view = memory_of(aten.reshape.default, lambda: torch.empty(4, 6), shape=[24])
    copy = memory_of(aten.reshape.default, lambda: torch.empty(4, 6).t(), shape=[24])

    assert view == CallMemory((), (), (~0,))
    assert [(taken.operator, taken.bytes) for taken in copy.allocations] == [("aten.clone.default", 96)]
    assert (copy.events, copy.outputs) == ((0,), (0,))


def test_what_a_composite_operator_drops_dies_before_it_returns():
    memory = memory_of(aten.layer_norm.default, lambda: torch.empty(5, 8), normalized_shape=[8])

    assert [taken.bytes for taken in memory.allocations] == [160, 20, 20]
    assert (memory.events[:3], sorted(memory.events[3:]), memory.outputs) == ((0, 1, 2), [~2, ~1], (0,))


def test_the_bias_of_a_linear_layer_is_added_in_place():
    called = []
    memory = memory_of(
        aten.linear.default,
        *(lambda: torch.empty(5, 3, 8).transpose(0, 1), lambda: torch.empty(16, 8), lambda: torch.empty(16)),
        workspace=lambda operator, *call: called.append(str(operator)) or (),
    )

    assert "aten.add.Tensor" in called  # In a real run it is `aten.add_`.
    assert [taken.bytes for taken in memory.allocations] == [3 * 5 * 16 * 4]
    assert memory.outputs == (0,)


def test_memory_that_is_not_known_names_its_operator():
    memory = memory_of(
        aten.cos.default, lambda: torch.empty(5, 3), workspace=lambda *call: [("cpu", 8), ("cpu", None)]
    )

    assert memory.unknown == ("aten.cos.default",)
    assert [taken.bytes for taken in memory.allocations] == [60, 8]


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"kMinBlockSize = (\d+);", "BLOCK_BYTES"),
        (r"kSmallSize = (\d+);", "SMALL_BYTES"),
        (r"kSmallBuffer = (\d+);", "SMALL_SEGMENT_BYTES"),
        (r"kMinLargeAlloc = (\d+);", "OWN_SEGMENT_BYTES"),
        (r"large_segment_size_\{(\d+)\}|kLargeBuffer = (\d+);", "LARGE_SEGMENT_BYTES"),
        (r"kRoundLarge = (\d+);", "ROUND_LARGE_BYTES"),
    ],
)
def test_the_header_has_the_same_number(pattern, name):
    found = re.search(pattern, HEADER.read_text(encoding="utf-8"))

    assert found is not None
    assert [int(number) for number in found.groups() if number] == [getattr(operator_memory, name)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_convolution_calls_onednn_where_the_answer_says_so(dtype):
    if dtype is torch.float16 and is_computed_by_onednn(dtype):
        pytest.skip("float16 is computed by oneDNN without gradients only")
    tensor, weight = torch.ones(2, 16, 12, 12, dtype=dtype), torch.ones(16, 16, 3, 3, dtype=dtype)

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        torch.conv2d(tensor, weight)

    names = {event.name for event in recorded.events()}
    assert ("aten::mkldnn_convolution" in names) is is_computed_by_onednn(dtype)
