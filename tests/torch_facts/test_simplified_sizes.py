"""What `simplified_sizes` relies on."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import importlib
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import sympy
import torch
import torch.nn.functional as F
from sympy.core.cache import clear_cache
from torch import nn
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import sym_node, symbolic_shapes
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Mod

from fakexport._torch.patching import Patches
from fakexport._torch.speed.simplified_sizes import sizes_simplified_once

SIMPLIFYING = importlib.import_module("sympy.simplify.simplify")
CONTEXTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "stock": contextlib.nullcontext,
    "once": sizes_simplified_once,
}


class Windows(nn.Module):
    """Pads the rows of an image to whole stripes, cuts it into them, and puts it together again."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        count, height, width = image.shape
        padded = F.pad(image, (0, 0, 0, -height % 4))
        high = padded.shape[1]
        stripes = padded.view(count, high // 4, 4, width).contiguous().view(-1, 4, width)
        joined = stripes.view(-1, high // 4, 4, width).contiguous().view(-1, high, width)
        return joined[:, :height].contiguous()


@pytest.fixture(scope="module")
def exported() -> dict[str, tuple[ExportedProgram, Counter[sympy.Basic]]]:
    """The program, and how often sympy simplified each term for it, by context."""
    return {name: counted(CONTEXTS[name]) for name in CONTEXTS}


def counted(
    context: Callable[[], AbstractContextManager[object]],
) -> tuple[ExportedProgram, Counter[sympy.Basic]]:
    forget_what_was_computed()
    counts: Counter[sympy.Basic] = Counter()
    stock = SIMPLIFYING.simplify

    def simplify(term: sympy.Basic, **options: object) -> sympy.Basic:
        counts[term] += 1
        return stock(term, **options)

    sizes = ({0: Dim.AUTO, 1: Dim.AUTO, 2: Dim.AUTO},)
    counting = Patches({(SIMPLIFYING, "simplify"): simplify, (sympy, "simplify"): simplify})
    with counting, context():
        program = torch.export.export(Windows(), (torch.randn(2, 16, 20),), dynamic_shapes=sizes)
    return program, counts


def forget_what_was_computed() -> None:
    """Empty the caches of sympy and of torch's arithmetic on sizes, which no export then finds filled."""
    clear_cache()
    FakeTensorMode.cache_clear()
    modules = (sym_node.__name__, symbolic_shapes.__name__)
    gc.unfreeze()  # The test session froze what it imported, and frozen objects are not listed.
    for each in gc.get_objects():
        if type(each) is functools._lru_cache_wrapper and each.__module__ in modules:
            each.cache_clear()
    gc.freeze()


@pytest.mark.slow
def test_stock_torch_simplifies_a_term_many_times(exported) -> None:
    stock, once = exported["stock"][1], exported["once"][1]

    assert max(stock.values()) > 50
    assert set(once) == set(stock)
    # Once as torch asks, and once with the options of sympy's own calls.
    assert max(once.values()) <= 2


@pytest.mark.slow
def test_programs_are_those_of_stock_torch(exported) -> None:
    stock, program = exported["stock"][0], exported["once"][0]

    assert str(program) == str(stock)
    assert program._guards_code == stock._guards_code
    image = torch.randn(3, 16, 20)
    assert torch.equal(program.module()(image), image)


def symbols(environment: ShapeEnv, count: int) -> list[sympy.Symbol]:
    """New sizes."""
    return [
        environment.create_symbol(60, ConstantSource(f"size_{number}"), DimDynamic.DYNAMIC)
        for number in range(count)
    ]


def known(environment: ShapeEnv, condition: sympy.Basic) -> None:
    """Let the environment learn that a condition holds, as a branch of a model would."""
    assert environment.evaluate_expr(condition)


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_term_is_simplified_again_once_more_is_known(context: str) -> None:
    environment = ShapeEnv(duck_shape=False)
    size, other = symbols(environment, 2)
    quotient, larger = FloorDiv(size, 4), Max(1, size - 30)
    with CONTEXTS[context]():
        assert environment.simplify(quotient) == quotient == environment.simplify(quotient)
        assert environment.simplify(larger) == larger == environment.simplify(larger)

        known(environment, sympy.Eq(Mod(other, 4), 0))
        assert environment.simplify(quotient) == quotient

        known(environment, sympy.Eq(Mod(size, 4), 0))
        assert environment.simplify(quotient) == CleanDiv(size, 4)

        known(environment, sympy.Ge(size, 40))
        assert environment.simplify(larger) == size - 30

        known(environment, sympy.Eq(size, other))
        found = environment.simplify(size * 2)
        assert found == environment.replace(size * 2)
        assert found.free_symbols == environment.replace(other).free_symbols


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_is_known_of_one_trace_is_not_known_of_another(context: str) -> None:
    first, second = ShapeEnv(), ShapeEnv()
    size, same = *symbols(first, 1), *symbols(second, 1)
    assert size == same
    with CONTEXTS[context]():
        known(first, sympy.Eq(Mod(size, 4), 0))
        assert first.simplify(FloorDiv(size, 4)) == CleanDiv(size, 4)
        assert second.simplify(FloorDiv(size, 4)) == FloorDiv(size, 4)


def test_what_is_known_may_be_copied_afterwards() -> None:
    environment = ShapeEnv()
    (size,) = symbols(environment, 1)
    with sizes_simplified_once():
        known(environment, sympy.Eq(Mod(size, 4), 0))
        environment.simplify(FloorDiv(size, 4))

    copied = copy.deepcopy(environment.divisible)
    assert type(copied) is set
    assert copied == environment.divisible == {Mod(size, 4)}
