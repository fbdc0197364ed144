"""What `_torch/traced_modules.py` relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fakexport._torch.traced_modules import traced_modules


class Shared(nn.Module):
    """One layer under two names, which torch traces through a stand-in of the module."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = self.first

    def forward(self, x):
        return self.second(self.first(x).relu())


@pytest.mark.parametrize(
    ("model", "path_of_traced"),
    [(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), ["0", "1"]), (Shared(), ["first", "first"])],
    ids=["plain", "shared"],
)
def test_each_submodule_is_announced_when_it_was_traced(model, path_of_traced):
    seen = []

    with traced_modules(seen.append):
        torch.export.export(model, (torch.ones(3, 2),))

    # Last come the model and the module in which torch puts it.
    assert [id(module) for module in seen[:-2]] == [id(model.get_submodule(path)) for path in path_of_traced]


def test_the_program_is_the_same_down_to_its_stack_traces():
    def exported():
        model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), Shared()).eval()
        return torch.export.export(model, (torch.ones(3, 2),))

    expected = exported()
    with traced_modules(lambda module: None):
        found = exported()

    def told(program):
        return [
            (str(node), str(node.target), node.meta.get("stack_trace"), str(node.meta.get("nn_module_stack")))
            for node in program.graph.nodes
        ]

    def without_addresses(rows):
        return [(name, target, trace, len(stack)) for name, target, trace, stack in rows]

    assert without_addresses(told(found)) == without_addresses(told(expected))
