"""What `_torch/data_dependent_questions.py` relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from fakexport._torch.data_dependent_questions import (
    Asserted,
    Unasserted,
    answered_questions,
    drop_unused_truths,
    named_assertions,
    unknowns_noted,
)


class Asks(nn.Module):
    def forward(self, x):
        chosen = x if x.sum() > 0 else -x
        steps = int(x.argmax())
        scale = float(x.max())
        parts = x[x > 0].split(2)
        return chosen * steps * scale, parts


def asked(answer):
    questions = []

    def note(question):
        questions.append(question)
        return answer(question)

    with answered_questions(note):
        program = torch.export.export(Asks(), (torch.ones(8),))
    return questions, program


def usual(question):
    return {"truth": False, "integer": 2, "float": 1.0}[question.kind]


def test_an_environment_asks_here_for_each_thing_that_data_decides():
    questions, _ = asked(usual)

    assert [(q.kind, q.is_of_size) for q in questions] == [
        ("truth", False),
        ("integer", False),
        ("float", False),
        ("truth", True),
        ("integer", True),
    ]
    assert questions[0].expression == "Eq(u0, 1)"
    assert questions[-1].low is not None


def test_each_number_that_an_environment_does_not_know_is_noted_when_it_is_made():
    noted = []
    with unknowns_noted(noted.append):
        questions, _ = asked(usual)

    assert noted == ["u0", "u1", "zuf0", "u2"]
    values = dict(zip(noted, (1, 7, 0.5, 4), strict=True))
    assert [question.answer_for(values) for question in questions[:3]] == [True, 7, 0.5]
    assert questions[0].answer_for({"u1": 1}) is None


def test_an_answer_is_asserted_in_the_program():
    _, program = asked(usual)

    assert "_assert_scalar" in program.graph_module.code


class ReadsTruths(torch.nn.Module):
    def forward(self, x):
        mask, y = x > 0, x.clone()
        if mask.any():
            y[mask] = 0
        return y * torch.sym_float((x > 2).any().item())


def test_a_truth_that_makes_no_difference_is_not_read():
    with answered_questions(lambda question: Unasserted(True)):
        program = torch.export.export(ReadsTruths(), (torch.ones(3),))
    reads = [node for node in program.graph.nodes if node.target is torch.ops.aten.item.default]
    assert len(reads) == len(program.range_constraints) == 2

    drop_unused_truths(program)

    assert [node for node in program.graph.nodes if node.target is torch.ops.aten.item.default] == reads[1:]
    assert len(program.range_constraints) == 1
    for x in (torch.tensor([-1.0, 3, 1]), -torch.ones(3)):
        assert torch.equal(program.module()(x), ReadsTruths()(x))
    program.run_decompositions()


def test_no_answer_fails_as_stock():
    with pytest.raises(GuardOnDataDependentSymNode), answered_questions(lambda question: None):
        torch.export.export(Asks(), (torch.ones(8),))


def test_the_environment_is_stock_afterwards():
    stock = ShapeEnv.evaluate_expr

    with answered_questions(usual):
        assert ShapeEnv.evaluate_expr is not stock

    assert ShapeEnv.evaluate_expr is stock


class Compares(nn.Module):
    def forward(self, x):
        return x if (x > 0).sum().item() > 3 else -x


def test_the_assertions_of_an_answer_and_of_the_bounds_that_follow_can_be_named():
    told = []
    with answered_questions(lambda question: True, lambda _, assertion: told.append(assertion)):
        program = torch.export.export(Compares(), (torch.ones(8),))
    (assertion,) = told

    found = named_assertions(program, dict.fromkeys((assertion.text, *assertion.bounds), "of its own"))

    assert assertion == Asserted("3 < u0", frozenset({"u0 >= 4"}), frozenset({"u0 >= 4"}))
    assert found == {"3 < u0", "u0 >= 4"}
    with pytest.raises(RuntimeError, match=r"^of its own$"):
        program.module()(torch.zeros(8))


class Longest(nn.Module):
    """Slices a tensor of as many rows as the longer of two lists has."""

    def forward(self, x):
        first, second = x[x > 0], x[x > 1]
        count = max(first.shape[0], second.shape[0])
        torch._check(count > 0)
        return x.new_zeros(2, count, 32)[:, 0:1, :] + 1


def test_what_torch_goes_on_without_is_not_asked():
    questions = []
    torch.export.export(Longest(), (torch.ones(8),))

    with answered_questions(questions.append):
        torch.export.export(Longest(), (torch.ones(8),))

    assert questions == []


def test_what_is_not_zero_is_more_than_zero():
    class Selects(nn.Module):
        def forward(self, x):
            picked = x[x > 0]
            return x if picked.numel() == 0 else picked - picked[:1]

    told = []
    with answered_questions(lambda question: False, lambda _, assertion: told.append(assertion)):
        program = torch.export.export(Selects(), (torch.ones(8),))

    assert told == [Asserted("0 < u0", frozenset({"u0 >= 1"}), frozenset({"u0 >= 1"}))]
    assert program.module()(torch.arange(3.0).repeat(3)[:8]).tolist() == [0, 1, 0, 1, 0]


class Fills(nn.Module):
    def forward(self, x):
        rows = x[x > 0]
        return rows if 8 - rows.shape[0] > 0 else rows[:8]


def test_an_assertion_is_left_out_where_bounds_say_the_same():
    told = []
    with answered_questions(lambda question: False, lambda _, assertion: told.append(assertion)):
        program = torch.export.export(Fills(), (torch.ones(8),))
    (assertion,) = told

    found = named_assertions(program, dict.fromkeys((assertion.text, *assertion.same), "of its own"))

    assert (assertion.text, found) == ("8 <= u0", {"u0 >= 8"})
    assert program.module()(torch.ones(8)).shape == (8,)
    with pytest.raises(RuntimeError, match=r"^of its own$"):
        program.module()(torch.zeros(8))
