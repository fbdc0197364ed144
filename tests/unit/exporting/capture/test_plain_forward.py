"""Programs need no package of the model: their outputs are plain, their inputs are named as given."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.export.graph_signature import InputKind

import fakexport as fe

Pair = namedtuple("Pair", ["low", "high"])


class Output(OrderedDict):
    """Like a transformers ModelOutput: a dict that a library registered with pytree."""


@dataclass
class Boxes:
    scores: torch.Tensor
    labels: torch.Tensor | None = None


class Returning(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x + 1, x * 2)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(lambda a, b: Output(loss=None, logits=a, hidden=b), {"logits", "hidden"}, id="dict"),
        pytest.param(lambda a, b: Pair(a, b), {"low", "high"}, id="named-tuple"),
        pytest.param(lambda a, b: Boxes(a), {"scores"}, id="dataclass"),
    ],
)
def test_named_outputs_become_a_plain_dict(make, expected):
    program = fe.export(Returning(make), (torch.ones(3),))

    result = program.module()(torch.ones(3))
    assert type(result) is dict
    assert result.keys() == expected


def test_nested_containers_keep_their_shape():
    program = fe.export(Returning(lambda a, b: (a, [b, Pair(a, b)])), (torch.ones(3),))

    first, (second, pair) = program.module()(torch.ones(3))
    assert torch.equal(first, torch.full((3,), 2.0))
    assert torch.equal(second, torch.full((3,), 2.0))
    assert pair.keys() == {"low", "high"}


class Keywords(nn.Module):
    def forward(self, x, **kwargs):
        return x + kwargs["bias"]


def test_keyword_inputs_behind_double_stars_keep_their_names():
    program = fe.export(Keywords(), (torch.ones(3),), {"bias": torch.ones(3)})

    specs = program.graph_signature.input_specs
    names = [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]
    assert names == ["x", "bias"]


def test_the_modules_own_forward_comes_back():
    module = Keywords()

    fe.export(module, (torch.ones(3),), {"bias": torch.ones(3)})

    assert "forward" not in vars(module)
    assert torch.equal(module(torch.ones(3), bias=torch.ones(3)), torch.full((3,), 2.0))


def test_a_forward_set_on_the_instance_comes_back_after_a_failure():
    module = nn.Linear(3, 3)

    def broken(x):
        raise RuntimeError("no")

    module.forward = broken

    with pytest.raises(RuntimeError, match="no"):
        fe.export(lambda: (module, (torch.ones(3),)))
    assert module.forward is broken


def test_an_input_that_forward_does_not_take_is_a_bad_call():
    with pytest.raises(TypeError, match=r"Keywords\.forward: missing a required argument: 'x'"):
        fe.export(Keywords(), (), {"bias": torch.ones(3)})
