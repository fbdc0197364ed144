"""Example inputs that the caller of `check` gives, as to `export`."""

import pytest
import torch
from torch import nn

import fakexport as fe


class Scaled(nn.Module):
    def forward(self, x, *, by):
        return x * by


def inputs_of(program):
    """The values of the program's inputs that a caller passes."""
    names = program.graph_signature.user_inputs
    return [node.meta["val"] for node in program.graph.find_nodes(op="placeholder") if node.name in names]


def test_args_and_kwargs_are_the_inputs_of_the_program():
    report = fe.check(Scaled, (torch.zeros(3, 4),), {"by": torch.ones(4)}, target=["cpu", "H100"])

    assert report.is_clean
    for verdict, device in zip(report.verdicts, ("cpu", "cuda:0"), strict=True):
        x, by = inputs_of(verdict.program)
        assert (tuple(x.shape), str(x.device)) == ((3, 4), device)
        assert (tuple(by.shape), str(by.device)) == ((4,), device)


def test_what_is_given_replaces_what_the_factory_returns():
    report = fe.check(lambda: (nn.Linear(4, 2), (torch.zeros(3, 4),)), (torch.zeros(7, 4),))

    (x,) = inputs_of(report.verdicts[0].program)
    assert tuple(x.shape) == (7, 4)


@pytest.mark.parametrize("function", [fe.check, fe.export])
def test_a_tensor_in_place_of_a_tuple_is_refused(function):
    """Unpacked, its rows would be the inputs, and a model of two inputs would export with the wrong ones."""
    with pytest.raises(fe.InvalidType, match=r"^args is a Tensor; pass a tuple of inputs, such as \(x,\)$"):
        function(lambda: nn.Bilinear(4, 4, 2), torch.zeros(2, 4))
    with pytest.raises(fe.InvalidType, match=r"^kwargs is a list; pass a dict of inputs"):
        function(Scaled, (torch.zeros(2),), [torch.zeros(2)])


def test_inputs_that_are_given_twice_are_refused():
    with pytest.raises(fe.InvalidValue, match=r"^pass the example inputs either as args and kwargs"):
        fe.check(nn.Linear(4, 2), (torch.zeros(3, 4),), inputs=["input=float32[3,4]"])


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self):
        return self.weight * 2


@pytest.mark.parametrize("factory", [Table, lambda: (Table(), ())])
def test_a_forward_without_parameters_needs_no_inputs(factory):
    report = fe.check(factory)

    assert report.is_clean
    assert inputs_of(report.verdicts[0].program) == inputs_of(fe.export(factory)) == []


class Optional(nn.Module):
    def forward(self, x=None):
        return torch.zeros(3) if x is None else x * 2


@pytest.mark.parametrize("function", [fe.check, fe.export])
def test_inputs_that_are_missing_are_not_taken_as_none(function):
    """The program of `forward()` is not the one of any call that a user makes."""
    with pytest.raises(ValueError, match=r"^Optional returned no inputs: return \(module, args\)"):
        function(Optional)


@pytest.mark.parametrize("function", [fe.check, fe.export])
def test_a_device_map_that_is_missing_is_named(function):
    with pytest.raises(fe.InvalidValue, match=r"^device map no\.json: No such file or directory$"):
        function(Table, device_map="no.json")
