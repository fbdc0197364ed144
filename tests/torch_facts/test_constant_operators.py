"""What `constant_operators` relies on."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fakexport._torch.operators import constant_operators
from fakexport._torch.operators.constant_operators import NotExact, exact_result


def computed(function, *tensors):
    graph = make_fx(function)(*tensors).graph
    values = dict(zip(graph.find_nodes(op="placeholder"), tensors, strict=True))
    for node in graph.nodes:
        if node.op == "call_function":
            values[node] = exact_result(node, values)
    return values[graph.output_node().args[0]]


EXACT = {
    "integers": lambda a, b: (a - b) ** 2 // 3,
    "division": lambda a, b: torch.ceil(a / b + 1).to(torch.int64),
    "half": lambda a, b: a / 2,
    "views": lambda a, b: torch.stack([a, b]).unbind(0)[1],
    "choice": lambda a, b: torch.where(a > b, a, b).max(),
    "sum": lambda a, b: (a + b).sum(),
    "padding": lambda a, b: torch.nn.functional.pad(a / b, (1, 0), value=1),
}
INEXACT = {
    "reciprocal": lambda a, b: a / 3,
    "sum of floats": lambda a, b: (a / b).sum(),
    "exp": lambda a, b: torch.exp(a),
    "random": lambda a, b: torch.rand(3) + a,
    "place": lambda a, b: a.max(0)[1],
    "two in one": lambda a, b: torch.add(a / b, b, alpha=3),
    "half precision": lambda a, b: a.half() + 1,
    "infinite": lambda a, b: (a / (b - b)).to(torch.int64),
    "rounded division": lambda a, b: torch.div(a.float(), b, rounding_mode="floor"),
}


@pytest.mark.parametrize("name", EXACT)
def test_an_exact_operator_gives_what_eager_gives(name):
    a, b = torch.tensor([7, 8, 9]), torch.tensor([2, 3, 5])

    assert torch.equal(computed(EXACT[name], a, b), EXACT[name](a, b))


@pytest.mark.parametrize("name", INEXACT)
def test_another_is_refused(name):
    with pytest.raises(NotExact):
        computed(INEXACT[name], torch.tensor([7, 8, 9]), torch.tensor([2, 3, 5]))


@pytest.mark.parametrize("name", sorted(constant_operators._ANY_DTYPE | constant_operators._INTEGERS_ALONE))
def test_every_operator_of_the_tables_exists(name):
    assert hasattr(torch.ops.aten, name)
