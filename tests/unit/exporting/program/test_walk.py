"""The order and the reach of a walk through a program."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fakexport.exporting.program import walk
from tests.unit.exporting.program.small_models import MLP


def test_a_flat_program_is_walked_in_the_order_of_its_graph() -> None:
    program = torch.export.export(MLP(), (torch.randn(3, 8),))

    visits = list(walk(program))

    assert [visit.node for visit in visits] == list(program.graph.nodes)
    assert [visit.index for visit in visits] == list(range(len(visits)))
    assert {visit.graph for visit in visits} == {""}


def test_branches_are_walked_right_after_the_node_that_takes_them(branching: ExportedProgram) -> None:
    visits = list(walk(branching))

    call = next(visit for visit in visits if visit.node.name == "cond")
    below = [visit for visit in visits if visit.caller is call]
    assert {visit.graph for visit in below} == {"true_graph_0", "false_graph_0"}
    assert [visit.index for visit in below] == list(range(call.index + 1, call.index + 1 + len(below)))
    assert len(visits) == sum(
        len(module.graph.nodes)
        for module in branching.graph_module.modules()
        if isinstance(module, GraphModule)
    )


def test_a_subgraph_of_two_callers_is_walked_once() -> None:
    program = torch.export.export(_Nested(), (torch.randn(3, 4),))
    main = program.graph_module
    first, second = (node for node in main.graph.nodes if node.name in ("cond", "cond_1"))
    second.args = (second.args[0], *first.args[1:3], second.args[3])

    visits = list(walk(program))

    assert sum(visit.node.op == "output" for visit in visits) == 3


class _Nested(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return torch.cond(once.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (once,))
