"""What `operator_nodes` relies on: how the tracer tracks a tensor with symbolic sizes."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from fakexport._torch.emulation.fake_tensors import FakeTensorMode
from fakexport._torch.speed import operator_nodes


def tracked(track, make):
    """The tracer's entries for the numbers of a tensor, and the nodes that they create on demand."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2)
    x = mode.from_tensor(torch.ones(5, 7), symbolic_context=context)
    tracer = proxy_tensor.PythonKeyTracer()
    tracer.root, tracer.graph = torch.nn.Module(), torch.fx.Graph(tracer_cls=type(tracer))
    proxy = tracer.create_proxy("placeholder", "x", (), {})
    with mode:
        tensor = make(x)
        for each in (x, tensor):
            track(tracer, each, proxy)
        numbers = [*tensor.shape, *tensor.stride(), tensor.numel(), tensor.storage_offset()]
        symbols = {str(key): str(each.value) for key, each in tracer.sympy_expr_tracker.items()}
        thunks = len(tracer.symnode_tracker)
        for number in numbers:
            if isinstance(number, torch.SymInt):
                tracer.symnode_tracker[number].force()
    described = [(str(n.target), n.args[1:], str(n.meta.get("val"))) for n in tracer.graph.nodes]
    return symbols, thunks, described, tracer.tensor_tracker[tensor].proxy is proxy


def by_torch(tracer, tensor, proxy):
    proxy_tensor.track_tensor(tensor, proxy, constant=None, tracer=tracer)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x * 2,
        lambda x: x.t() * 2,
        lambda x: x[1:, 2:],
        lambda x: x.new_ones(x.shape[0]),
        lambda x: x.new_ones(3, x.shape[1]).t(),
        lambda x: x[x.shape[0] // 2 :],
    ],
    ids=["new", "transposed", "a part", "one symbol", "a stride that is a symbol", "an offset"],
)
def test_a_tensor_is_tracked_as_by_torch(make):
    assert tracked(operator_nodes.track, make) == tracked(by_torch, make)
