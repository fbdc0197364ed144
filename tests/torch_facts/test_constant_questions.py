"""What `_torch/constant_questions.py` relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fakexport._torch.constant_questions import ListedConstants, constant_questions


class Asks(nn.Module):
    def __init__(self, question):
        super().__init__()
        self.register_buffer("size", torch.tensor(3), persistent=False)
        self.question = question

    def forward(self, x):
        return x * 2 if self.question(self.size) else x


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

    with constant_questions(answer):
        program = torch.export.export(Asks(QUESTIONS[name]), (torch.ones(2),))

    assert seen == [(True if name == "bool" else 3, set())]
    assert torch.ops.aten.mul.Tensor in {node.target for node in program.graph.nodes}


def test_a_write_through_a_view_is_a_write_to_the_memory():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("sizes", torch.tensor([1, 2]), persistent=False)

        def forward(self, x):
            self.sizes[:1].add_(1)
            return x * self.sizes.max().item()

    written = []

    def answer(graph, tensor, reading):
        source = next(node for node in graph._tracer.graph.nodes if node.target is torch.ops.aten.max.default)
        written.append(graph.memory(source.args[0]) in graph.written())

    with constant_questions(answer):
        torch.export.export(Writes(), (torch.ones(2),))

    assert written == [True]


def test_no_answer_leaves_the_trace_as_stock():
    class Multiplies(nn.Module):
        def forward(self, x):
            return x * x.sum().item()

    with constant_questions(lambda graph, tensor, reading: None):
        program = torch.export.export(Multiplies(), (torch.ones(2),))

    assert str(program.graph) == str(torch.export.export(Multiplies(), (torch.ones(2),)).graph)


COUNTED = {
    "index": (lambda x, mask: x[mask], "count"),
    "nonzero": (lambda x, mask: x * mask.nonzero().shape[0], "count"),
    "as_tuple": (lambda x, mask: x[mask.nonzero(as_tuple=True)], "count"),
    "repeat": (lambda x, mask: x[torch.repeat_interleave(mask.long())], "sum"),
    "repeat of another": (lambda x, mask: torch.repeat_interleave(x, mask.long()), "sum"),
}


@pytest.mark.parametrize("name", COUNTED)
def test_the_count_of_a_mask_is_the_size_of_what_it_selects(name):
    class Selects(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.tensor([True, False, True]), persistent=False)

        def forward(self, x):
            selected = COUNTED[name][0](x, self.mask)
            return [selected] * len(range(selected.shape[0]))

    def answer(graph, tensor, reading):
        assert reading == COUNTED[name][1]
        return graph.number(tensor, lambda node: torch.tensor([True, False, True]), reading=reading)

    x = torch.arange(3.0)
    with constant_questions(answer):
        program = torch.export.export(Selects(), (x,))

    expected = Selects()(x)
    assert len(program.module()(x)) == len(expected)
    assert torch.equal(program.module()(x)[0], expected[0])


def test_torch_reads_tensors_in_a_list_past_every_mode_unless_they_are_numbers():
    class Lists(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("size", torch.tensor(3), persistent=False)

        def forward(self, x):
            return x * torch.tensor([1, [self.size, 2][0]])

    with pytest.raises(Exception, match=r"local_scalar_dense|data-dependent|data"):
        torch.export.export(Lists(), (torch.ones(2),))
    with ListedConstants(lambda graph, tensor, reading: 3):
        program = torch.export.export(Lists(), (torch.ones(2),))

    assert program.module()(torch.ones(2)).tolist() == [1.0, 3.0]


def test_the_memory_of_a_tensor_under_vmap_is_that_of_what_it_looks_at():
    class Maps(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.tensor([True, False, True]), persistent=False)

        def forward(self, x):
            return torch.vmap(lambda row: row & self.mask)(x > 0), self.mask.nonzero()

    memories = []

    def answer(graph, tensor, reading):
        memories.extend(graph.memory(node) for node in graph._tracer.graph.nodes)
        return None

    with constant_questions(answer):
        torch.export.export(Maps(), (torch.ones(2, 3),))

    assert memories


def test_a_list_with_a_number_that_is_not_known_is_left_to_torch():
    class Lists(nn.Module):
        def forward(self, x):
            return torch.tensor([0, x.sum().item()])

    with ListedConstants(lambda graph, tensor, reading: None):
        program = torch.export.export(Lists(), (torch.tensor([2, 3]),))

    assert program.module()(torch.tensor([4, 3])).tolist() == [0, 7]
