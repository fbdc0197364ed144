"""What `_torch/block_recordings.py` relies on."""

from __future__ import annotations

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.block_recordings import NotReplayable, entry_state
from tests.torch_facts.recorded_blocks import exported, recorded


def recording_of(function=None, *, at=2, is_dynamic=False):
    """The recording of one call, checked, and its fault."""
    found = []

    def around(index, tracer, module, forward, args):
        if index != at:
            return forward(*args)
        recording, result = recorded(tracer, module, forward, args)
        settled = recording.is_settled
        try:
            recording.check_replayable()
            found.append((recording, settled, None))
        except NotReplayable as reason:
            found.append((recording, settled, str(reason)))
        return result

    exported(function, around, is_dynamic=is_dynamic)
    return found[0]


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "auto"])
def test_every_node_is_noted_in_order(is_dynamic):
    recording, is_settled, fault = recording_of(is_dynamic=is_dynamic)

    assert fault is None
    assert is_settled
    assert [str(made.node.target) for made in recording.made] == ["aten.linear.default", "aten.relu.default"]
    assert [made.function.__name__ for made in recording.made] == ["linear", "relu"]


def test_a_first_call_of_an_operator_is_seen_in_the_memory_of_fake_mode():
    FakeTensorMode.cache_clear()

    _, is_first_settled, _ = recording_of(at=0)
    _, is_second_settled, _ = recording_of(at=1)

    assert not is_first_settled
    assert is_second_settled


def written(block, x):
    with torch.no_grad():
        block.up.bias.add_(1)
    return block.up(x)


def unnamed(block, x):
    with torch._C.DisableTorchFunction():
        return x + 1


FAULTS = {
    "unnamed": (unnamed, "a function that was called before it"),
    "writes": (written, "writes to memory from outside"),
    "literal": (lambda block, x: x + torch.tensor([1.0] * 4), "get_attr node|no value|placeholder node"),
    "value": (lambda block, x: x * x.nonzero().shape[0], "depends on data"),
    "condition": (
        lambda block, x: torch.cond(x.sum() > 2, lambda y: y + 1, lambda y: y - 1, (x,)),
        "graph of its own|get_attr",
    ),
}


@pytest.mark.parametrize(("function", "expected"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_done_again_is_a_fault(function, expected):
    _, _, fault = recording_of(function)

    assert fault is not None
    assert re.search(expected, fault), fault


def test_a_guard_changes_the_environment():
    _, _, fault = recording_of(lambda block, x: block.up(x) if x.shape[0] != 7 else x, at=0, is_dynamic=True)

    assert fault == "it changed what is known of the symbols"


def test_the_calls_inside_of_a_block_show_in_its_nodes():
    states = []

    def around(index, tracer, module, forward, args):
        inner = [name for name, _ in module.named_modules() if name]
        states.append(entry_state(tracer, module, inner))
        result = forward(*args)
        states.append(entry_state(tracer, module, inner))
        return result

    exported(None, around)

    assert states[0] == states[2] == states[4]
    assert states[1] != states[0]
