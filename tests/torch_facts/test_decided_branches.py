"""What torch answers about sizes without a guard, for sizes of 2 or more; and where guards are installed."""

import functools
import operator

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

from fakexport._torch.tracing.decided_branches import DecidedBranches
from fakexport._torch.tracing.program_assembly import add_guards, check_guards, guards_code
from fakexport._torch.tracing.symbolic_numbers import expression_of, expression_python


class Branch(nn.Module):
    def __init__(self, decide):
        super().__init__()
        self.decide = decide

    def forward(self, x, y):
        return x.sum() + y.sum() if self.decide(x, y) else x.sum() - y.sum()


INPUTS = (torch.ones(2, 16), torch.ones(3, 9))


def exported(decide):
    decided = DecidedBranches(lambda path: path == __file__, lambda path: False)
    with decided.watched():
        shapes = ({1: Dim.AUTO}, {1: Dim.AUTO})
        program = torch.export.export(Branch(decide), INPUTS, dynamic_shapes=shapes)
    return program, decided.guards(program, lambda node: __file__)


@pytest.mark.parametrize(
    ("decide", "guards"),
    [
        (lambda x, y: x.shape[1] != 1, ["L['x'].size()[1] != 1"]),
        (lambda x, y: x.shape[1] == 1, ["L['x'].size()[1] != 1"]),
        (lambda x, y: x.shape[1] > 1 and y.shape[1] > 1, ["L['x'].size()[1] > 1", "L['y'].size()[1] > 1"]),
        (lambda x, y: x.shape[0] == 1, []),
        (lambda x, y: (x + x)[:, :1].shape[1] == 1, []),
        (lambda x, y: torch.cat([x, x]).shape[1] < 10**30, []),
        (lambda x, y: functools.reduce(operator.add, [x, x[:, :1]]).numel() > 0, []),  # torch asks
        (lambda x, y: bool((x * 1).squeeze().exp().ndim), ["L['x'].size()[1] != 1"]),
        (lambda x, y: bool((x * 1).squeeze(1).exp().ndim), ["L['x'].size()[1] != 1"]),
        (lambda x, y: bool((x * 1).squeeze((0, -1)).exp().ndim), ["L['x'].size()[1] != 1"]),
        (lambda x, y: bool((x * 1).squeeze(0).exp().ndim), []),
    ],
)
def test_a_branch_that_a_size_of_one_turns_has_no_guard_of_torch(decide, guards):
    program, found = exported(decide)

    assert found == guards
    assert not set(found) & set(guards_code(program))


@pytest.mark.parametrize(
    ("keys", "guards"), [("others", ["L['q'].size()[2] > 1"]), ("cut", ["L['q'].size()[2] > 1"]), ("own", [])]
)
def test_what_a_library_asks_is_kept_where_attention_would_be_causal_for_one_query(keys, guards):
    class Attention(nn.Module):
        def forward(self, q, k):
            is_causal = q.shape[2] > 1 and True
            seen = {"others": k, "cut": k[:, :, : q.shape[2]], "own": q}[keys]
            return functional.scaled_dot_product_attention(q, seen, seen, is_causal=is_causal)

    decided = DecidedBranches(lambda path: False, lambda path: path == __file__)
    with decided.watched():
        inputs, shapes = (torch.ones(2, 1, 3, 8), torch.ones(2, 1, 7, 8)), ({2: Dim.AUTO}, {2: Dim.AUTO})
        program = torch.export.export(Attention(), inputs, dynamic_shapes=shapes)

    assert decided.guards(program, lambda node: __file__) == guards
    assert not set(guards) & set(guards_code(program))


def test_what_torch_guards_is_not_kept_twice_and_sizes_are_printed_as_in_guards():
    program, found = exported(lambda x, y: x.shape[1] % 2 == 0)

    assert found == []
    assert guards_code(program) == ["(L['x'].size()[1] % 2) == 0"]
    symbol = expression_of(next(iter(program.graph.nodes)).meta["val"].shape[1])
    assert eval(expression_python(3 * symbol + 1), {symbol.name: 5}) == 16


def test_a_squeezed_result_is_correct_for_every_size():
    class Squeezed(nn.Module):
        def forward(self, x):
            return (x + 1).squeeze()

    decided = DecidedBranches(lambda path: path == __file__, lambda path: False)
    with decided.watched():
        program = torch.export.export(Squeezed(), (torch.ones(3, 4),), dynamic_shapes=({0: Dim.AUTO},))

    assert decided.guards(program, lambda node: __file__) == []
    assert program.module()(torch.ones(1, 4)).shape == (4,)


def test_module_checks_what_was_added_where_there_are_example_inputs():
    program, found = exported(lambda x, y: x.shape[1] != 1)
    add_guards(program, found)
    single = (torch.ones(2, 1), torch.ones(3, 9))

    check_guards(program.module(), INPUTS)
    with pytest.raises(AssertionError, match=r"Guard failed: x\.size\(\)\[1\] != 1"):
        check_guards(program.module(), single)
    with pytest.raises(AssertionError, match=r"Guard failed: x\.size\(\)\[1\] != 1"):
        program.module()(*single)

    program.example_inputs = None
    check_guards(program.module(), single)
    program.module()(*single)  # The day torch refuses this, `program.stand_in_inputs` can go.


def test_torch_checks_no_input_that_was_none():
    class Optional(nn.Module):
        def forward(self, x, mask=None):
            return x if mask is None else x * mask

    program = torch.export.export(Optional(), (torch.ones(3), None))
    program.module()(torch.ones(3), torch.zeros(3))

    add_guards(program, ["L['mask'] == None"])
    with pytest.raises(AssertionError, match="Guard failed: mask == None"):
        program.module()(torch.ones(3), torch.zeros(3))
