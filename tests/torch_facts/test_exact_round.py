"""What `fakexport._torch.exact_round` relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport._torch.exact_round import exact_round

X = torch.ones(4, 2)


class Rounds(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return x * (round(n * 5, -1) + 1000 * round(n, -2) + round(-n, -1) + round(n) + round(n, 2))


def test_stock_leaves_a_size_as_it_is() -> None:
    size = torch.export.export(Rounds(), (X,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()

    with pytest.raises(AssertionError):
        torch.testing.assert_close(size(torch.ones(3, 2)), Rounds()(torch.ones(3, 2)))


def test_a_program_rounds_as_python_does() -> None:
    program = fe.export(Rounds, (X,), dynamic_shapes=["x.0=2..400"]).module()

    for n in (*range(2, 31), 49, 50, 51, 149, 150, 151, 250, 399):
        x = torch.ones(n, 2)
        assert torch.equal(program(x), Rounds()(x)), n


def test_a_condition_on_a_rounded_size_is_decided_and_kept() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if round(x.shape[0], -1) == 10 else x - 1

    program = fe.export(Branches, (torch.ones(7, 2),), dynamic_shapes=["x.0=6..14"]).module()

    for n in (6, 10, 14):
        assert torch.equal(program(torch.ones(n, 2)), torch.full((n, 2), 2.0))


def test_numbers_of_python_are_not_touched() -> None:
    with exact_round():
        assert (round(15, -1), round(2.5), round(2.567, 1)) == (20, 2, 2.6)


class RoundsHalves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * round(x.shape[0] / 2)


def test_stock_puts_round_of_a_fraction_into_the_program() -> None:
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(RoundsHalves(), (X,), dynamic_shapes=dynamic)

    assert round in {node.target for node in program.graph.nodes}


def test_a_program_rounds_fractions_in_integers() -> None:
    program = fe.export(RoundsHalves, (X,), dynamic_shapes=["x.0=2..400"])

    assert round not in {node.target for node in program.graph.nodes}
    for n in (2, 3, 5, 7, 9, 399):
        torch.testing.assert_close(program.module()(torch.ones(n, 2)), RoundsHalves()(torch.ones(n, 2)))
