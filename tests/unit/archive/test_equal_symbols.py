"""Equal symbols of sympy are written alike, whichever of them its caches return."""

import pytest
import sympy
import torch
from torch import nn

import fakexport as fe
from tests.same_nodes import canonical_lines

U = sympy.Symbol("u0", integer=True)
S = sympy.Symbol("s77", positive=True, integer=True)


class Number(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, x, n):
        return x + self.compute(x, n)


def doubled(x, n):
    return torch.tensor([n.item() * 7907])


def rows(x, n):
    return torch.full((x.shape[0], 1), x.shape[0] * 7907)


def both(x, n):
    return torch.tensor([n.item() * 7907, x.shape[0] * 7907]).sum()


def chosen(x, n):
    count = n.item()
    torch._check(count >= 0)
    torch._check(count < 7907)
    return torch.arange(7907 * count + 1).float().mean()


@pytest.fixture(autouse=True)
def fill_caches():
    """Let sympy remember products of symbols that are equal to those of torch and were made differently."""
    for symbol in (U, S):
        other = sympy.Symbol(symbol.name, **symbol.assumptions0)
        assert other == symbol
        sympy.Mul(7907, other), sympy.Mul(other, 7907), 7907 * other, 7907 * other + 1


@pytest.mark.parametrize("compute", [doubled, rows, both, chosen], ids=lambda each: each.__name__)
def test_a_program_with_products_of_sizes_opens_and_runs(compute, tmp_path):
    def factory():
        return Number(compute), (torch.zeros(2, 3), torch.tensor(3))

    program = fe.export(factory, dynamic_shapes=["x.0=1..9"])
    fe.save(program, tmp_path / "program.pt2")

    loaded = fe.load(tmp_path / "program.pt2")

    for x, n in ((torch.randn(2, 3), torch.tensor(5)), (torch.randn(7, 3), torch.tensor(2))):
        torch.testing.assert_close(loaded.module()(x, n), Number(compute)(x, n))


def test_archive_bytes_do_not_depend_on_the_caches_of_sympy(tmp_path):
    def factory():
        return Number(both), (torch.zeros(2, 3), torch.tensor(3))

    texts = []
    for name in ("one", "two"):
        fe.save(fe.export(factory, dynamic_shapes=["x.0=1..9"]), tmp_path / name)
        texts.append((tmp_path / name).read_bytes())
        sympy.core.cache.clear_cache()

    assert texts[0] == texts[1]


def test_comparing_programs_leaves_no_other_symbols_in_the_caches():
    """`sympy.srepr`, which `torch.export.save` calls, would write them."""

    class Second(nn.Module):
        def forward(self, x, n, m):
            n.item()
            return x + torch.tensor([m.item() * 7919])

    sympy.core.cache.clear_cache()
    inputs = (torch.zeros(2, 3), torch.tensor(3), torch.tensor(3))

    canonical_lines(fe.export(lambda: (Second(), inputs)))

    assert sympy.srepr(sympy.Mul(sympy.Integer(7919), U)) == "Mul(Integer(7919), Symbol('u0', integer=True))"
