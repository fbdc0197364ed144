"""What `data_dependent_questions` relies on."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from fakexport._torch.tracing.data_dependent_questions import (
    Asserted,
    Unasserted,
    answered_numpy_reads,
    answered_questions,
    drop_unused_truths,
    iterated_tensors,
    named_assertions,
    unknowns_noted,
)


class Calls(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.function = forward

    def forward(self, x):
        return self.function(x)


def export(forward, x=None):
    return torch.export.export(Calls(forward), (torch.ones(8) if x is None else x,))


def asks(x):
    chosen = x if x.sum() > 0 else -x
    return chosen * int(x.argmax()) * float(x.max()), x[x > 0].split(2)


def usual(question):
    return {"truth": False, "integer": 2, "float": 1.0}[question.kind]


def test_an_environment_asks_here_for_each_thing_that_data_decides_and_the_program_asserts_it():
    questions, noted, stock = [], [], ShapeEnv.evaluate_expr

    with unknowns_noted(noted.append), answered_questions(lambda q: questions.append(q) or usual(q)):
        program = export(asks)

    assert [(q.kind, q.is_of_size) for q in questions] == [
        *(("truth", False), ("integer", False), ("float", False), ("truth", True), ("integer", True))
    ]
    assert questions[0].expression == "Eq(u0, 1)"
    assert questions[-1].low is not None
    assert "_assert_scalar" in program.graph_module.code
    assert ShapeEnv.evaluate_expr is stock
    assert noted == ["u0", "u1", "zuf0", "u2"]
    values = dict(zip(noted, (1, 7, 0.5, 4), strict=True))
    assert [question.answer_for(values) for question in questions[:3]] == [True, 7, 0.5]
    assert questions[0].answer_for({"u1": 1}) is None


def test_no_answer_fails_as_stock():
    with pytest.raises(GuardOnDataDependentSymNode), answered_questions(lambda question: None):
        export(asks)


def reads_truths(x):
    mask, y = x > 0, x.clone()
    if mask.any():
        y[mask] = 0
    return y * torch.sym_float((x > 2).any().item())


def test_a_truth_that_makes_no_difference_is_not_read():
    with answered_questions(lambda question: Unasserted(True)):
        program = export(reads_truths, torch.ones(3))
    reads = [node for node in program.graph.nodes if node.target is torch.ops.aten.item.default]
    assert len(reads) == len(program.range_constraints) == 2

    drop_unused_truths(program)

    assert [node for node in program.graph.nodes if node.target is torch.ops.aten.item.default] == reads[1:]
    assert len(program.range_constraints) == 1
    for x in (torch.tensor([-1.0, 3, 1]), -torch.ones(3)):
        assert torch.equal(program.module()(x), reads_truths(x))
    program.run_decompositions()


def fills(x):
    rows = x[x > 0]
    return rows if 8 - rows.shape[0] > 0 else rows[:8]


@pytest.mark.parametrize(
    ("forward", "answer", "assertion", "found"),
    [
        (
            lambda x: x if (x > 0).sum().item() > 3 else -x,
            True,
            Asserted("3 < u0", frozenset({"u0 >= 4"}), frozenset({"u0 >= 4"})),
            {"3 < u0", "u0 >= 4"},
        ),
        # An assertion is left out where bounds say the same.
        (fills, False, Asserted("8 <= u0", frozenset({"u0 >= 8"}), frozenset({"u0 >= 8"})), {"u0 >= 8"}),
    ],
)
def test_the_assertions_of_an_answer_and_of_the_bounds_that_follow_can_be_named(
    forward, answer, assertion, found
):
    told = []
    with answered_questions(lambda question: answer, lambda _, assertion: told.append(assertion)):
        program = export(forward)

    names = dict.fromkeys((assertion.text, *assertion.same, *assertion.bounds), "of its own")

    assert told == [assertion]
    assert named_assertions(program, names) == found
    assert program.module()(torch.ones(8)).shape == (8,)
    with pytest.raises(RuntimeError, match=r"^of its own$"):
        program.module()(torch.zeros(8))


def longest(x):
    """Slices a tensor of as many rows as the longer of two lists has."""
    first, second = x[x > 0], x[x > 1]
    count = max(first.shape[0], second.shape[0])
    torch._check(count > 0)
    return x.new_zeros(2, count, 32)[:, 0:1, :] + 1


def test_what_torch_goes_on_without_is_not_asked():
    questions = []
    export(longest)

    with answered_questions(questions.append):
        export(longest)

    assert questions == []


def test_what_is_not_zero_is_more_than_zero():
    def forward(x):
        picked = x[x > 0]
        return x if picked.numel() == 0 else picked - picked[:1]

    told = []
    with answered_questions(lambda question: False, lambda _, assertion: told.append(assertion)):
        program = export(forward)

    assert told == [Asserted("0 < u0", frozenset({"u0 >= 1"}), frozenset({"u0 >= 1"}))]
    assert program.module()(torch.arange(3.0).repeat(3)[:8]).tolist() == [0, 1, 0, 1, 0]


def to_numpy(x):
    return x * float(x.numpy().sum()) * float(numpy.asarray(x.bfloat16()).sum())


def test_both_ways_to_numpy_are_refused_by_stock():
    errors = []

    with answered_numpy_reads(lambda error: not errors.append(str(error))):
        export(to_numpy)
        assert torch.arange(3).numpy().tolist() == [0, 1, 2]

    assert len(errors) == 2
    assert "not supported for tensor subclasses" in errors[0]
    with pytest.raises(RuntimeError, match="tensor subclasses"), answered_numpy_reads(lambda error: False):
        export(to_numpy)


def loops(x):
    total = x.sum() * 0
    for row in x:
        total = total + row.sum()
    for row in x.nonzero():
        total = total + row[0]
    return total


def test_rows_that_are_given_are_looped_over_and_known_ones_are_not_asked_for():
    with pytest.raises(GuardOnDataDependentSymNode):
        export(loops, torch.ones(2, 3))
    asked = []

    with iterated_tensors(lambda tensor: asked.append(tuple(tensor.shape)[1:]) or [[1], [5]]):
        program = export(loops, torch.ones(2, 3))

    assert asked == [(2,)]
    assert program.module()(torch.ones(2, 3)) == 6 + 1 + 5
