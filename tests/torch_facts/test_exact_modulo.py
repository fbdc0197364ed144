"""What `fakexport._torch.exact_modulo` relies on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from fakexport._torch.exact_modulo import INEXACT_MODULO, exact_modulo

Number = Callable[[int], float]


class Chosen(nn.Module):
    """Branches on a number that it computes from a size."""

    def __init__(self, number: Number, compared: float) -> None:
        super().__init__()
        self.number = number
        self.compared = compared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        number = self.number(x.shape[0])
        if number == self.compared:
            return x * 2
        if number < self.compared:
            return x * 3
        return x * 5


class Filled(nn.Module):
    def __init__(self, number: Number) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((2,), self.number(x.shape[0]))


NUMBERS: dict[str, Number] = {
    "by a float": lambda size: size % 2.5,
    "by a negative float": lambda size: size % -2.5,
    "of a negative number": lambda size: (2 - size) % 2.5,
    "of a float": lambda size: 7.5 % size,
    "of half a size": lambda size: (size / 2) % 2,
    "by half a size": lambda size: 7 % (size / 2),
    "of a product": lambda size: (size * 0.75) % 2,
    "of a sum": lambda size: (size / 4 + 0.5) % 1.5,
    "of another one": lambda size: (size % 2.5) % 1.5,
    "as an integer": lambda size: int(size % 2.5),
}
INEXACT: dict[str, Number] = {
    "by a tenth": lambda size: size % 0.1,
    "of a third of a size": lambda size: (size / 3) % 2,
    "of a root": lambda size: size**0.5 % 2,
}


def exported(model: nn.Module) -> ExportedProgram:
    return torch.export.export(model, (torch.ones(3, 2),), dynamic_shapes=({0: Dim.AUTO},))


def answers(program: ExportedProgram, model: nn.Module) -> list[tuple[float, float]]:
    """Return what a program gives for the sizes that it takes, and what eager mode gives for them."""
    pairs, module = [], program.module()
    for size in range(2, 40):
        x = torch.ones(size, 2)
        with contextlib.suppress(AssertionError):  # The size is refused.
            pairs.append((module(x).flatten()[0].item(), model(x).flatten()[0].item()))
    return pairs


def test_stock_torch_takes_the_wrong_branch() -> None:
    model = Chosen(lambda size: size % 2.5, 0.5)

    found = answers(exported(model), model)

    assert (5.0, 2.0) in found


@pytest.mark.parametrize("compared", ["its value", 1.0])
@pytest.mark.parametrize("number", NUMBERS.values(), ids=list(NUMBERS))
def test_a_condition_is_decided_as_eager_mode_decides_it(number: Number, compared: str | float) -> None:
    model = Chosen(number, number(3) if isinstance(compared, str) else compared)
    with exact_modulo():
        program = exported(model)

    found = answers(program, model)

    assert model(torch.ones(3, 2))[0, 0].item() in [value for value, _ in found]
    assert all(value == expected for value, expected in found)


def test_a_modulo_that_is_always_zero_fixes_no_size() -> None:
    model = Chosen(lambda size: size % 0.5, 0)
    with exact_modulo():
        program = exported(model)

    assert answers(program, model) == [(2.0, 2.0)] * 38


@pytest.mark.parametrize("number", [NUMBERS["by a float"], NUMBERS["of half a size"]])
def test_the_operator_stays_in_the_program_as_a_value(number: Number) -> None:
    model = Filled(number)
    with exact_modulo():
        program = exported(model)

    found = answers(program, model)

    assert len(found) == 38
    assert all(value == expected for value, expected in found)


@pytest.mark.parametrize("number", INEXACT.values(), ids=list(INEXACT))
def test_one_that_would_be_rounded_is_refused(number: Number) -> None:
    with exact_modulo(), pytest.raises(RuntimeError, match=INEXACT_MODULO):
        exported(Chosen(number, 0.0))
