"""What `node_stack_traces` relies on: which frames the stack traces of nodes show."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.fx import Tracer
from torch.utils._traceback import CapturedTraceback

from fakexport._torch.speed.node_stack_traces import quick_stack_traces


def scaled(x):
    return x * x.shape[0]


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(scaled(x)).relu()


class Again(nn.Module):
    """So deep that Python leaves out repeated lines."""

    def __init__(self, depth=0):
        super().__init__()
        self.inner = Again(depth - 1) if depth else Inner()

    def forward(self, x):
        return self.inner(x) + 1


def exported(shapes=None):
    program = torch.export.export(Again(6), (torch.ones(3, 4),), dynamic_shapes=shapes)
    return [(node.name, node.meta.get("stack_trace")) for node in program.graph.nodes]


@pytest.mark.parametrize("shapes", [None, ({0: Dim.AUTO},)], ids=["static", "auto"])
def test_the_stack_traces_of_nodes_read_the_same(shapes):
    stock = exported(shapes)
    with quick_stack_traces():
        quick = exported(shapes)

    assert quick == stock
    assert any("in forward" in (trace or "") for _, trace in stock)


class ShowsAll(Tracer):
    record_stack_traces = True


def test_a_tracer_that_shows_all_frames_does_so():
    def traced():
        return [node.stack_trace for node in ShowsAll().trace(Inner()).nodes]

    stock = traced()
    with quick_stack_traces():
        quick = traced()

    assert quick == stock
    assert any("in scaled" in (trace or "") for trace in stock)


def test_who_else_asks_for_a_stack_trace_gets_all_of_it():
    with quick_stack_traces():
        names = [frame.name for frame in CapturedTraceback.extract().summary()]

    assert names[-1] == "test_who_else_asks_for_a_stack_trace_gets_all_of_it"
    assert len(names) > 5
