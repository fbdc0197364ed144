"""What `_torch/template_replay.py` relies on: nodes made once more are the nodes of a trace."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental import proxy_tensor

from fakexport._torch.block_templates import template_of
from fakexport._torch.functional_collectives import all_gather, all_reduce
from fakexport._torch.template_replay import replay
from fakexport.program import first_difference
from tests.torch_facts.recorded_blocks import exported, reachable, recorded


def reused(function, *, is_dynamic):
    """The program of blocks of which the last ones are made from the third."""
    templates = []

    def around(index, tracer, module, forward, args):
        if index == 2:
            recording, result = recorded(tracer, module, forward, args)
            templates.append(template_of(recording, result))
            return result
        if index > 2:
            return replay(templates[0], tracer, module, *reachable(tracer, module, args))
        return forward(*args)

    return exported(function, around, count=6, is_dynamic=is_dynamic)


def traced(function, *, is_dynamic):
    return exported(
        function, lambda at, tracer, module, forward, args: forward(*args), count=6, is_dynamic=is_dynamic
    )


BLOCKS = {
    "plain": None,
    "alias": lambda block, x: block.up(x.to(torch.float32)) + x,
    "sizes": lambda block, x: block.up(x) + torch.ones(x.shape[0], 1),
    "no gradients": lambda block, x: block.up(x.detach()).relu(),
    "collectives": lambda block, x: all_reduce(all_gather(block.up(x), 1)),
    "several results": lambda block, x: torch.cat(block.up(x).split(2, -1)[::-1], -1),
}


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "auto"])
@pytest.mark.parametrize("function", BLOCKS.values(), ids=BLOCKS)
def test_nodes_made_once_more_are_those_of_a_trace(function, is_dynamic):
    assert (
        first_difference(reused(function, is_dynamic=is_dynamic), traced(function, is_dynamic=is_dynamic))
        is None
    )


def test_the_tracer_has_the_fields_that_a_call_changes():
    fields = []

    def around(index, tracer, module, forward, args):
        fields.append({name for name in NAMES if hasattr(tracer, name)})
        return forward(*args)

    exported(None, around)

    assert fields[0] == set(NAMES)
    assert all(
        hasattr(proxy_tensor, name) for name in ("_ProxyTensor", "_SympyExprTrackerValue", "track_tensor")
    )


NAMES = (
    "graph",
    "module_stack",
    "node_name_to_scope",
    "num_calls",
    "submodule_paths",
    "sympy_expr_tracker",
    "tensor_tracker",
    "torch_fn_counts",
    "torch_fn_metadata",
)
