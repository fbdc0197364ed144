"""What `_torch/left_numbers.py` relies on: the lazy nodes of symbolic sizes."""

from __future__ import annotations

import torch

from fakexport._torch.block_templates import template_of
from fakexport._torch.left_numbers import NewNumber
from fakexport._torch.observed_tensors import thunk_of
from tests.torch_facts.recorded_blocks import exported, recorded


def templates(function):
    found = []

    def around(index, tracer, module, forward, args):
        if index != 2:
            return forward(*args)
        recording, result = recorded(tracer, module, forward, args)
        found.append((template_of(recording, result), tracer, result))
        return result

    exported(function, around, is_dynamic=True)
    return found[0]


def doubled(block, x):
    return torch.cat([block.up(x), x])


def test_the_size_of_a_result_is_computed_later_from_its_node():
    template, _, _ = templates(doubled)

    number = next(iter(template.new_numbers.values()))
    assert isinstance(number, NewNumber)
    assert number.later is not None
    assert "proxy" in number.later.func.__code__.co_freevars
    assert number.node in template.refers


def test_a_size_that_was_asked_for_has_a_node():
    template, _, _ = templates(lambda block, x: block.up(x) * torch.ones(x.shape[0], 1))

    assert template.symbols or template.forced or template.new_numbers


def test_a_number_made_again_has_the_node_of_its_own_tensor():
    template, tracer, result = templates(doubled)
    number = next(iter(template.new_numbers.values()))
    other = next(iter(tracer.graph.nodes))

    again = number.again(tracer, lambda node: other)

    assert str(again.node.expr) == str(number.number.node.expr)
    assert again.node is not number.number.node
    assert thunk_of(tracer, again).f is not None
    assert thunk_of(tracer, result.shape[0]) is not thunk_of(tracer, again)
