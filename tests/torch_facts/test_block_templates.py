"""What `_torch/block_templates.py` relies on."""

from __future__ import annotations

import pytest
import torch

from fakexport._torch.block_recordings import NotReplayable
from fakexport._torch.block_templates import template_of
from tests.torch_facts.recorded_blocks import exported, recorded


def template(function=None, *, is_dynamic=False):
    """The template of the third block, or why there is none."""
    found = []

    def around(index, tracer, module, forward, args):
        if index != 2:
            return forward(*args)
        recording, result = recorded(tracer, module, forward, args)
        try:
            found.append(template_of(recording, result))
        except NotReplayable as reason:
            found.append(str(reason))
        return result

    exported(function, around, is_dynamic=is_dynamic)
    return found[0]


def test_nodes_have_the_metadata_that_is_known():
    found = template()

    assert [str(node.target) for node in found.nodes] == ["aten.linear.default", "aten.relu.default"]
    assert [set(node.meta) for node in found.nodes] == [
        {"nn_module_stack", "torch_fn", "val", "tensor_meta", "stack_trace"} & set(found.nodes[0].meta)
    ] * 2
    assert {"nn_module_stack", "torch_fn", "val"} <= set(found.nodes[0].meta)
    assert [node.scope[0] for node in found.nodes] == [".up", ""]
    assert found.calls == {"up": 1}
    assert sorted(kind for kind, _ in found.outside.values()) == ["tensor"] * 3


def test_an_operator_that_returns_its_input_renews_it():
    found = template(lambda block, x: block.up(x.to(torch.float32)))

    assert found.renewed == {0: 0}


def test_a_size_that_gets_a_node_is_forced():
    found = template(lambda block, x: block.up(x) + torch.ones(x.shape[0], 1), is_dynamic=True)

    assert not isinstance(found, str), found
    assert any("ones" in str(node.target) for node in found.nodes)


def test_a_view_is_made_from_its_base():
    found = template(lambda block, x: block.up(x).split(2, -1)[1].repeat(1, 2).t().t())

    ((at, base),) = found.bases
    assert str(found.nodes[at].target) == "aten.repeat.default"
    ((how, (_, view)),) = found.outputs
    assert (how, view.base) == ("made", base)


LEFT_OUT = {
    "view of the input": lambda block, x: x.t().t(),
    "view as another dtype": lambda block, x: torch.view_as_real(
        torch.complex(x[:, :2], block.up(x)[:, 2:])
    ).flatten(1),
    "leaf": lambda block, x: block.up(x).detach().requires_grad_(),
}


@pytest.mark.parametrize("function", LEFT_OUT.values(), ids=LEFT_OUT)
def test_some_results_cannot_be_made_again(function):
    assert isinstance(template(function), str)
