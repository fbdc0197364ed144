"""Terms of sizes, each simplified once.

An image whose height and width vary has long sizes, and a model that cuts it into windows divides them. torch
then asks sympy to simplify each quotient, and sympy simplifies the arguments of a term once for each level
above them: 178,000 times in a small Swin, of 86 different terms. Whenever torch learns that a size is a
multiple of another, it also simplifies all that it knows of sizes again, most of which does not divide these
two. Here a term is simplified again only if one of the questions that torch asked when it simplified it has
another answer now. The results are those of stock torch. Seen on torch 2.13 and 2.15.

Source: `sympy/simplify/simplify.py:simplify`, `torch/utils/_sympy/functions.py:FloorDiv.eval`,
`torch/fx/experimental/symbolic_shapes.py:ShapeEnv.simplify, _maybe_evaluate_static, _update_divisible`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv, safe_expand
from torch.utils._sympy.functions import Max, Min

from .patching import Patches, in_force

# By its name: the package has a function that is called the same.
_SIMPLIFYING = importlib.import_module("sympy.simplify.simplify")

# torch 2.15 finds out which of two terms is their maximum in other ways, of which many depend on ranges.
_ORDERED_BY_RANGES = "var_to_range" in inspect.signature(ShapeEnv.simplify).parameters

# What replaces symbols, by how often it changed and how much it is.
_Replaced = tuple[int, int]
# Questions, and whether each was known to be so.
_Answers = dict[Any, bool]


def sizes_simplified_once() -> Patches:
    """Return a context in which a term is simplified again only where something else is known of it."""
    stock_of_sympy = in_force(_SIMPLIFYING, "simplify")
    stock = in_force(ShapeEnv, "simplify")
    stock_update = in_force(ShapeEnv, "_update_divisible")
    by_sympy: dict[Any, Any] = {}
    by_torch: dict[Any, _Simplified] = {}
    asked: list[_Answers] = []

    def simplify_by_sympy(term: Any, **options: Any) -> Any:
        key = (type(term), term, *sorted(options.items()))
        if (found := by_sympy.get(key)) is None:
            found = by_sympy[key] = stock_of_sympy(term, **options)
        return found

    def simplify(environment: ShapeEnv, term: Any, size_oblivious: bool = False, **assumptions: Any) -> Any:
        if any(each is not None for each in assumptions.values()) or (
            _ORDERED_BY_RANGES and not size_oblivious and environment.replace(term).has(Max, Min)
        ):
            return stock(environment, term, size_oblivious, **assumptions)
        key = (environment, type(term), term, size_oblivious)
        if (known := by_torch.get(key)) is not None and known.is_so(environment):
            return known.result
        asked.append({})
        try:
            result = stock(environment, term, size_oblivious)
        finally:
            zero = asked.pop()
        comparisons = {} if size_oblivious else _comparisons(environment, term)
        by_torch[key] = _Simplified(result, _replaced(environment), zero, comparisons)
        return result

    def update(environment: ShapeEnv) -> None:
        zero, replaced = environment.divisible, _replaced(environment)
        if isinstance(zero, _Zero) and zero.state == (replaced, len(zero)):
            environment._update_version_counter()
        else:
            stock_update(environment)
            environment.divisible = _Zero(environment.divisible, replaced, asked)

    return Patches(
        {
            (_SIMPLIFYING, "simplify"): simplify_by_sympy,
            (sympy, "simplify"): simplify_by_sympy,
            (ShapeEnv, "simplify"): simplify,
            (ShapeEnv, "_update_divisible"): update,
        }
    )


@dataclass(frozen=True)
class _Simplified:
    """What torch made of a term.

    Args:
        result: It.
        replaced: What replaced symbols then.
        zero: Remainders of divisions, and whether each was known to be 0.
        comparisons: Those by which torch knows which of two is their maximum, and whether they were known.
    """

    result: Any
    replaced: _Replaced
    zero: _Answers
    comparisons: _Answers

    def is_so(self, environment: ShapeEnv) -> bool:
        """Return whether torch would make the same of it now."""
        return (
            self.replaced == _replaced(environment)
            and all((each in environment.divisible) is answer for each, answer in self.zero.items())
            and all(_is_known(environment, each) is answer for each, answer in self.comparisons.items())
        )


def _comparisons(environment: ShapeEnv, term: Any) -> _Answers:
    found = {}
    for maximum in environment.replace(safe_expand(term)).atoms(Max):
        if len(maximum.args) == 2 and not {0, 1}.isdisjoint(maximum.args):
            least, other = sorted(maximum.args, key=lambda each: each not in (0, 1))
            comparison = sympy.Ge(other, least)
            found[comparison] = _is_known(environment, comparison)
    return found


def _is_known(environment: ShapeEnv, comparison: Any) -> bool:
    return bool(environment._maybe_evaluate_static(comparison))


def _replaced(environment: ShapeEnv) -> _Replaced:
    return environment._replacements_version_counter, len(environment.replacements)


class _Zero(set[Any]):
    """The remainders that are known to be 0.

    Args:
        remainders: They.
        replaced: What replaced symbols when torch last removed from them what had become a number.
        asked: Gets what is asked of them, in its last element, if it has one.
    """

    def __init__(self, remainders: Iterable[Any], replaced: _Replaced, asked: list[_Answers]) -> None:
        super().__init__(remainders)
        self.state = replaced, len(self)
        self._asked = asked

    def __contains__(self, remainder: object) -> bool:
        answer = super().__contains__(remainder)
        if self._asked:
            self._asked[-1][remainder] = answer
        return answer

    def __reduce__(self) -> tuple[Any, ...]:
        return set, (list(self),)
