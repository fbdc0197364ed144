"""What `_torch/template_differences.py` relies on."""

from __future__ import annotations

import pytest
import torch

from fakexport._torch.block_templates import template_of
from fakexport._torch.template_differences import first_template_difference
from tests.torch_facts.recorded_blocks import exported, recorded


def difference(function, *, is_dynamic=False):
    """What differs between the templates of the third block and the last, which `function` is told."""
    calls = []
    templates = {}

    def around(index, tracer, module, forward, args):
        calls.append(index)
        recording, result = recorded(tracer, module, forward, args)
        if index > 1:
            templates[index] = template_of(recording, result)
        return result

    exported(lambda block, x: function(block, x, len(calls) == 4), around, is_dynamic=is_dynamic)
    return first_template_difference(templates[2], templates[3])


ALIKE = {
    "plain": lambda block, x, is_last: block.up(x).relu(),
    "casts": lambda block, x, is_last: block.up(x.to(torch.float32)),
    "sizes": lambda block, x, is_last: block.up(x) + torch.ones(x.shape[0], 1),
    "several": lambda block, x, is_last: block.up(x.split(2, -1)[0].repeat(1, 2)),
}
DIFFERENT = {
    "another number": lambda block, x, is_last: block.up(x) * (3 if is_last else 2),
    "another type": lambda block, x, is_last: block.up(x) * (1.0 if is_last else 1),
    "the sign of zero": lambda block, x, is_last: block.up(x) * (-0.0 if is_last else 0.0),
    "another operator": lambda block, x, is_last: block.up(x).relu() if is_last else block.up(x).tanh(),
    "one more": lambda block, x, is_last: block.up(x).relu() if is_last else block.up(x),
    "another argument": lambda block, x, is_last: block.up(x) + (block.up.bias if is_last else x),
    "another place": lambda block, x, is_last: (
        torch.nn.functional.linear(x, block.up.weight, block.up.bias) if is_last else block.up(x)
    ),
    "another dtype": lambda block, x, is_last: block.up(x).to(torch.float64 if is_last else torch.float32),
    "another result": lambda block, x, is_last: (block.up(x), block.up(x).relu())[is_last],
}


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("function", ALIKE.values(), ids=ALIKE)
def test_equal_calls_have_equal_templates(function, is_dynamic):
    assert difference(function, is_dynamic=is_dynamic) is None


@pytest.mark.parametrize("function", DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_is_named(function):
    assert difference(function) is not None
