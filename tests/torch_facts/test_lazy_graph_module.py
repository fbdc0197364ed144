"""What `lazy_graph_module` relies on."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fakexport._torch.speed.lazy_graph_module import lazy_graph_modules


def program():
    with lazy_graph_modules():
        return torch.export.export(nn.Linear(3, 2), (torch.ones(4, 3),))


def test_the_program_runs_as_one_with_generated_code():
    module = nn.Linear(3, 2)
    x = torch.randn(4, 3)

    with lazy_graph_modules():
        exported = torch.export.export(module, (x,))

    assert torch.equal(exported.module()(x), module(x))


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.11's own
def test_the_program_can_be_saved_and_copied(tmp_path):
    exported = program()

    torch.export.save(exported, tmp_path / "program.pt2")
    again = torch.export.load(tmp_path / "program.pt2")

    assert [n.name for n in again.graph.nodes] == [n.name for n in exported.graph.nodes]
    assert copy.deepcopy(exported.graph_module).code == exported.graph_module.code


def test_nothing_stays_lazy_outside():
    program()

    assert type(torch.fx.symbolic_trace(nn.Linear(3, 2))) is not type(program().graph_module)


def test_an_exported_program_has_the_code_of_stock_when_it_is_asked_for():
    module, x = nn.Linear(3, 2), torch.ones(4, 3)

    stock = torch.export.export(module, (x,))

    assert program().graph_module.code == stock.graph_module.code
    assert str(program()) == str(stock)
