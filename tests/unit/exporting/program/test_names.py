"""Names of operators and of outputs."""

from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from fakexport.exporting.program.node_names import target_name
from fakexport.exporting.program.output_names import output_names

Pair = namedtuple("Pair", ["left", "right"])


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (torch.ops.aten.linear.default, "aten.linear.default"),
        (torch.ops.aten.add.Tensor, "aten.add.Tensor"),
        (torch.ops.higher_order.cond, "higher_order.cond"),
        (operator.getitem, "operator.getitem"),
        (operator.ge, "operator.ge"),
        (torch.sym_max, "torch.sym_max"),
        (max, "max"),
    ],
)
def test_operators_have_the_names_of_their_library(target: Any, name: str) -> None:
    assert target_name(target) == name


@pytest.mark.parametrize(
    ("pack", "names"),
    [
        (lambda x: x, ["output"]),
        (lambda x: (x,), ["0"]),
        (lambda x: [x, (x + 1, x + 2)], ["0", "1.0", "1.1"]),
        (lambda x: {"a": x, "b": {"c": x + 1}}, ["a", "b.c"]),
        (lambda x: OrderedDict(z=x, y=x + 1), ["z", "y"]),
        (lambda x: defaultdict(list, first=x, second=x + 1), ["first", "second"]),
        (lambda x: Pair(x, x + 1), ["left", "right"]),
        (lambda x: {"a": x, "nothing": None}, ["a", "nothing"]),
    ],
)
def test_outputs_are_named_by_their_place_in_what_is_returned(pack: Any, names: list[str]) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return pack(x.relu())

    program = torch.export.export(Model(), (torch.randn(3),))

    assert list(output_names(program)) == names
    assert len(names) == len(program.graph_signature.output_specs)
