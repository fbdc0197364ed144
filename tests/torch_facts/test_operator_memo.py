"""What `operator_memo` relies on: the one place that makes a node, and what fake mode counts."""

from __future__ import annotations

import inspect
import re

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import proxy_tensor

from fakexport._torch.speed.operator_call import OperatorCall
from fakexport._torch.speed.operator_memo import OperatorMemo, ShapeKnowledge
from fakexport._torch.speed.operator_nodes import METADATA
from tests.unit.exporting.capture.memo_models import Repeats, in_chunks


class Twice(nn.Module):
    def forward(self, x):
        for _ in range(4):
            x = torch.relu(x + 1)
        return x


def exported(memo):
    if memo is None:
        return torch.export.export(Twice(), (torch.ones(3),))
    with memo.active():
        return torch.export.export(Twice(), (torch.ones(3),))


def metadata(program):
    """Names, metadata in their order, and everything that has a text."""
    return [
        (node.name, str(node.target), [(key, str(value)) for key, value in node.meta.items()])
        for node in program.graph.nodes
    ]


def test_nodes_of_answered_operators_are_those_of_stock_torch():
    memo = OperatorMemo()

    assert metadata(exported(memo)) == metadata(exported(None))
    assert memo.answered == 6


def test_every_operator_of_a_trace_comes_by_one_function(monkeypatch):
    seen = []
    stock = proxy_tensor.proxy_call
    monkeypatch.setattr(
        proxy_tensor, "proxy_call", lambda mode, func, *args: (seen.append(func), stock(mode, func, *args))[1]
    )

    program = exported(None)

    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert seen == called


def test_a_node_of_an_operator_has_these_metadata_in_this_order():
    found = []
    stock = proxy_tensor.track_tensor_tree

    def track(result, proxy, **kwargs):
        made = stock(result, proxy, **kwargs)
        found.append(list(proxy.node.meta) if isinstance(proxy, torch.fx.Proxy) else [])
        return made

    proxy_tensor.track_tensor_tree = track
    try:
        exported(None)
    finally:
        proxy_tensor.track_tensor_tree = stock

    operators = [keys for keys in found if keys and keys != ["val", "tensor_meta"]]
    assert all(keys == METADATA for keys in operators)


def test_fake_mode_names_its_reasons_for_not_remembering():
    """The memo repeats results that fake mode leaves out of its memory for these reasons."""
    found = re.findall(r'_BypassDispatchCache\("([^"]+)"\)', inspect.getsource(FakeTensorMode))

    assert "CompositeImplicitAutograd" in found
    assert ("unsafe view" in found) == (torch.__version__ < "2.15")  # Remembered since then.


def test_the_last_node_of_a_graph_is_before_its_root():
    graph = torch.fx.Graph()
    last = graph._root._prev
    node = graph.placeholder("x")

    assert last._next is node
    assert node._next is graph._root


def test_a_key_asks_a_tensor_nothing_that_torch_counts_or_refuses():
    """`is_leaf` raises for some views, and a view that is written to gets a gradient function when asked."""
    source = inspect.getsource(OperatorCall._tensor)

    assert not re.findall(r"tensor\.(is_leaf|grad_fn|grad|_base|_version|device)\b", source)


def test_a_shape_environment_has_the_same_guard_several_times():
    """Otherwise `ShapeKnowledge` could count all guards."""
    rows = torch.export.Dim.AUTO
    program = torch.export.export(
        Repeats(in_chunks, 3),
        (torch.ones(2, 10, 6),),
        dynamic_shapes={"x": {0: rows, 1: rows}},
        strict=False,
    )

    value = next(node.meta["val"] for node in program.graph.nodes if node.name == "x")
    environment = value.fake_mode.shape_env
    different = {(guard.expr, guard.size_oblivious) for guard in environment.guards}
    assert len(different) < len(environment.guards)
    assert ShapeKnowledge().of(environment)[2] == len(different)
