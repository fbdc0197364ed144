"""What the comparison of two constructions sees, and what it does not mind."""

import pytest
import torch
from torch import nn

from tests.architectures.module_state import module_state


class Parts(nn.Module):
    """A tensor in every place that a constructor can put one into."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2, bias=False)
        self.tied = nn.Linear(2, 2, bias=False)
        self.tied.weight = self.fc.weight
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("top", self.table[2:], persistent=False)
        self.listed = [torch.full((2,), float("nan")), {"deep": torch.zeros(1)}, self.fc]
        self.unregistered = (nn.Linear(2, 1, bias=False),)
        self.rate = 0.1


def scale(parts):
    parts.listed[1]["deep"].fill_(-0.0)


def untie(parts):
    parts.tied.weight = nn.Parameter(parts.fc.weight.detach().clone())


def unshare(parts):
    parts.top = parts.top.clone()


def transpose(parts):
    parts.fc.weight.data = parts.fc.weight.data.t().contiguous().t()


def freeze(parts):
    parts.fc.weight.requires_grad_(False)


def persist(parts):
    parts._non_persistent_buffers_set.clear()


def reread(parts):
    parts.rate = 0.2


def made():
    torch.manual_seed(0)
    return Parts()


def test_the_same_construction_is_equal_with_its_nans():
    assert module_state(made()) == module_state(made())


def test_tensors_are_found_wherever_they_are():
    state = module_state(made())

    assert list(state.tensors) == [
        "table",
        "top",
        "listed[0]",
        "listed[1].deep",
        "unregistered[0].weight",
        "fc.weight",
        "tied.weight",
    ]
    assert state.tied == {frozenset({"fc.weight", "tied.weight"})}
    assert state.shared == {frozenset({"fc.weight", "tied.weight"}), frozenset({"table", "top"})}


@pytest.mark.parametrize("change", [scale, untie, unshare, transpose, freeze, persist, reread])
def test_another_construction_is_not(change):
    parts = made()
    change(parts)

    assert module_state(parts) != module_state(made())
