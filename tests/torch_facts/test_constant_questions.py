"""What `constant_questions` relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fakexport._torch.tracing.constant_questions import ListedConstants, constant_questions


class Holds(nn.Module):
    """Calls a function with the input and a buffer."""

    def __init__(self, value, forward):
        super().__init__()
        self.register_buffer("value", torch.tensor(value), persistent=False)
        self.function = forward

    def forward(self, x):
        return self.function(x, self.value)


QUESTIONS = {
    "bool": lambda t: bool(t == 3),
    "int": lambda t: int(t) == 3,
    "float": lambda t: float(t) == 3,
    "item": lambda t: t.item() == 3,
    "tolist": lambda t: t.tolist() == 3,
    "index": lambda t: len(range(t)) == 3,
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_of_a_trace_passes_here_and_its_graph_tells_the_buffer(name):
    seen = []

    def answer(graph, tensor, reading):
        number = graph.number(tensor, lambda node: torch.tensor(3) if node.op == "placeholder" else None)
        seen.append((number, graph.written()))
        return number

    model = Holds(3, lambda x, size: x * 2 if QUESTIONS[name](size) else x)
    with constant_questions(answer):
        program = torch.export.export(model, (torch.ones(2),))

    assert seen == [(True if name == "bool" else 3, set())]
    assert torch.ops.aten.mul.Tensor in {node.target for node in program.graph.nodes}


def test_a_write_through_a_view_is_a_write_to_the_memory():
    def forward(x, sizes):
        sizes[:1].add_(1)
        return x * sizes.max().item()

    written = []

    def answer(graph, tensor, reading):
        source = next(node for node in graph._tracer.graph.nodes if node.target is torch.ops.aten.max.default)
        written.append(graph.memory(source.args[0]) in graph.written())

    with constant_questions(answer):
        torch.export.export(Holds([1, 2], forward), (torch.ones(2),))

    assert written == [True]


COUNTED = {
    "index": (lambda x, mask: x[mask], "count"),
    "nonzero": (lambda x, mask: x * mask.nonzero().shape[0], "count"),
    "as_tuple": (lambda x, mask: x[mask.nonzero(as_tuple=True)], "count"),
    "repeat": (lambda x, mask: x[torch.repeat_interleave(mask.long())], "sum"),
    "repeat of another": (lambda x, mask: torch.repeat_interleave(x, mask.long()), "sum"),
}


@pytest.mark.parametrize("name", COUNTED)
def test_the_count_of_a_mask_is_the_size_of_what_it_selects(name):
    select, expected_reading = COUNTED[name]
    mask = [True, False, True]

    def forward(x, mask):
        selected = select(x, mask)
        return [selected] * len(range(selected.shape[0]))

    def answer(graph, tensor, reading):
        assert reading == expected_reading
        return graph.number(tensor, lambda node: torch.tensor(mask), reading=reading)

    model, x = Holds(mask, forward), torch.arange(3.0)
    with constant_questions(answer):
        program = torch.export.export(model, (x,))

    expected = model(x)
    assert len(program.module()(x)) == len(expected)
    assert torch.equal(program.module()(x)[0], expected[0])


def test_no_answer_leaves_the_trace_as_stock_also_under_vmap():
    def forward(x, mask):
        return torch.vmap(lambda row: row & mask)(x > 0), mask.nonzero(), x * x.sum().item()

    def answer(graph, tensor, reading):
        assert [graph.memory(node) for node in graph._tracer.graph.nodes]

    model = Holds([True, False, True], forward)
    with constant_questions(answer):
        program = torch.export.export(model, (torch.ones(2, 3),))

    assert str(program.graph) == str(torch.export.export(model, (torch.ones(2, 3),)).graph)


def test_torch_reads_tensors_in_a_list_past_every_mode_unless_they_are_numbers():
    model = Holds(3, lambda x, size: x * torch.tensor([1, [size, 2][0]]))

    with pytest.raises(Exception, match=r"local_scalar_dense|data-dependent|data"):
        torch.export.export(model, (torch.ones(2),))
    with ListedConstants(lambda graph, tensor, reading: 3):
        program = torch.export.export(model, (torch.ones(2),))
    assert program.module()(torch.ones(2)).tolist() == [1.0, 3.0]

    unknown = Holds(3, lambda x, size: torch.tensor([0, x.sum().item()]))
    with ListedConstants(lambda graph, tensor, reading: None):
        program = torch.export.export(unknown, (torch.tensor([2, 3]),))
    assert program.module()(torch.tensor([4, 3])).tolist() == [0, 7]
