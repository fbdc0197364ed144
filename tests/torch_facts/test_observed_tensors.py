"""What `_torch/observed_tensors.py` relies on, asked from inside of a trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from fakexport._torch.observed_tensors import (
    numbers_of,
    proxy_of,
    tensor_facts,
    thunk_of,
    tracing_paused,
    why_not_observable,
)

AUTO = {0: torch.export.Dim.AUTO}


class Asks(nn.Module):
    def __init__(self, question):
        super().__init__()
        self.question = question

    def forward(self, x):
        self.question(get_proxy_mode().tracer, x)
        return x * 2


def asked(question):
    """What a question learns inside of a trace, and the program."""
    answers = []
    model = Asks(lambda tracer, x: answers.append(question(tracer, x)))
    program = torch.export.export(model, (torch.ones(3, 2),), dynamic_shapes=(AUTO, None)[:1])
    return answers[0], program


def operators(program):
    return [node.name for node in program.graph.nodes if node.op == "call_function"]


def test_a_trace_knows_a_tensor_by_its_node():
    node, _ = asked(lambda tracer, x: proxy_of(tracer, x).proxy.node)

    assert node.op == "placeholder"


def test_a_size_has_a_node_from_when_it_is_needed():
    def question(tracer, x):
        thunk = thunk_of(tracer, x.shape[0])
        before = thunk.f
        node = thunk.force().node
        return before is not None, thunk.f is None, str(node.target)

    answers, _ = asked(question)

    assert answers == (True, True, "aten.sym_size.int")


def test_a_look_leaves_nothing_where_tracing_is_paused():
    def look(tracer, x):
        with tracing_paused():
            return numbers_of(x), tensor_facts(x), why_not_observable(x), str(x.shape[0] * 2)

    def count(tracer, x):
        before = dict(tracer.torch_fn_counts), tracer.torch_fn_metadata, len(tracer.graph.nodes)
        look(tracer, x)
        return before == (dict(tracer.torch_fn_counts), tracer.torch_fn_metadata, len(tracer.graph.nodes))

    is_unchanged, program = asked(count)

    assert is_unchanged
    assert operators(program) == ["mul"]


def test_without_the_pause_a_look_shows():
    def count(tracer, x):
        before = dict(tracer.torch_fn_counts), tracer.torch_fn_metadata
        x.stride(0)
        return before == (dict(tracer.torch_fn_counts), tracer.torch_fn_metadata)

    is_unchanged, _ = asked(count)

    assert not is_unchanged


CHANGES = {
    "dtype": lambda: torch.ones(2, 3, dtype=torch.float16),
    "device": lambda: torch.ones(2, 3, device="meta"),
    "requires_grad": lambda: torch.ones(2, 3, requires_grad=True),
    "no leaf": lambda: torch.ones(2, 3, requires_grad=True) * 2,
    "view": lambda: torch.ones(3, 2).t(),
    "written": lambda: torch.ones(2, 3).add_(1),
    "parameter": lambda: nn.Parameter(torch.ones(2, 3), requires_grad=False),
}


@pytest.mark.parametrize("made", CHANGES.values(), ids=CHANGES)
def test_what_differs_between_tensors_shows(made):
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        plain, other = torch.ones(2, 3), made()
    if isinstance(other, nn.Parameter):
        other = mode.from_tensor(nn.Parameter(torch.ones(2, 3), requires_grad=False))

    assert tensor_facts(plain) != tensor_facts(other)


def test_sizes_strides_offset_and_bytes():
    with FakeTensorMode():
        found = numbers_of(torch.ones(4, 6)[1:3, ::2])

    assert found == (2, 3, 6, 2, 6, 6, 96)


UNKNOWN = {
    "real": lambda: torch.ones(2),
    "sparse": lambda: FakeTensorMode().from_tensor(torch.eye(2).to_sparse()),
    "attribute": lambda: with_attribute(FakeTensorMode().from_tensor(torch.ones(2))),
    "hook": lambda: with_hook(FakeTensorMode().from_tensor(torch.ones(2, requires_grad=True))),
}


def with_attribute(tensor):
    tensor.note = 1
    return tensor


def with_hook(tensor):
    tensor.register_hook(lambda grad: grad)
    return tensor


@pytest.mark.parametrize("made", UNKNOWN.values(), ids=UNKNOWN)
def test_of_some_tensors_not_everything_can_be_told(made):
    assert why_not_observable(made()) is not None
    assert why_not_observable(FakeTensorMode().from_tensor(torch.ones(2))) is None
