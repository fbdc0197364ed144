"""What `fakexport._torch.exact_bounds` relies on."""

from __future__ import annotations

import sys

import pytest
import sympy
import torch
from torch import nn
from torch.export import Dim
from torch.fx.experimental import symbolic_shapes
from torch.utils._sympy.functions import CeilToInt, FloorToInt
from torch.utils._sympy.numbers import int_oo

from fakexport._torch.exact_bounds import exact_bounds

PLACEHOLDER = 9


class Embedded(nn.Module):
    """Puts a feature instead of each placeholder, as models of images and sounds do."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 1024)

    def forward(self, ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        embeds = self.table(ids)
        mask = (ids == PLACEHOLDER).unsqueeze(-1).expand_as(embeds)
        torch._check(embeds[mask].numel() == features.numel())
        return embeds.masked_scatter(mask, features)


def ids_with(placeholders: int, rows: int, length: int) -> torch.Tensor:
    ids = torch.zeros(rows, length, dtype=torch.long)
    ids.view(-1)[:placeholders] = PLACEHOLDER
    return ids


def exported(model: nn.Module, strict: bool) -> torch.export.ExportedProgram:
    sizes = ({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO})
    return torch.export.export(
        model, (ids_with(6, 2, 16), torch.randn(6, 1024)), dynamic_shapes=sizes, strict=strict
    )


@pytest.mark.parametrize("strict", [False, True])
def test_stock_torch_raises_an_assertion_of_its_own(strict: bool) -> None:
    with pytest.raises(Exception, match="not a subset of src_bound"):
        exported(Embedded(), strict)


@pytest.mark.parametrize("strict", [False, True])
def test_the_program_gives_what_eager_gives_and_checks_what_eager_checks(strict: bool) -> None:
    model = Embedded()
    with exact_bounds():
        program = exported(model, strict)

    for count in (4, 9):
        ids, features = ids_with(count, 3, 5), torch.randn(count, 1024)
        assert torch.equal(program.module()(ids, features), model(ids, features))
    # More features than placeholders: without the check, the rest of them would be left out.
    with pytest.raises(RuntimeError):
        program.module()(ids_with(4, 3, 5), torch.randn(5, 1024))


def test_a_program_is_decomposed_without_the_context() -> None:
    model = Embedded()
    with exact_bounds():
        program = exported(model, strict=False)

    program = program.run_decompositions()

    ids, features = ids_with(4, 3, 5), torch.randn(4, 1024)
    assert torch.equal(program.module()(ids, features), model(ids, features))


def test_only_quotients_of_large_integers_are_rounded_differently() -> None:
    ordinary = [
        sympy.Integer(7), sympy.Rational(7, 2), sympy.Rational(-7, 2), sympy.Float(2.5), int_oo, -int_oo,
        sympy.Symbol("x"),
    ]  # fmt: skip
    largest = sympy.Rational(sys.maxsize - 1, 1024)

    with exact_bounds():
        for number in ordinary:
            assert symbolic_shapes.FloorToInt(number) == FloorToInt(number)
            assert symbolic_shapes.CeilToInt(number) == CeilToInt(number)
        assert symbolic_shapes.FloorToInt(largest) == (sys.maxsize - 1) // 1024
        assert symbolic_shapes.CeilToInt(largest) == (sys.maxsize - 1) // 1024 + 1
    assert FloorToInt(largest) > largest
