"""Simplify each size expression once.

Images with dynamic height and width have long size expressions, which a model divides to cut windows. torch
asks sympy to simplify each quotient, and sympy simplifies the arguments of a term once per enclosing level:
178,000 times in a small Swin, for 86 distinct terms. When torch learns that one size is a multiple of
another, it also simplifies all known sizes again, although most contain no quotient of these two. This module
simplifies a term again only if a query that torch made during the last simplification would now have a
different result. The results are the same as in stock torch. Seen on torch 2.13 and 2.15.

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

from fakexport._torch.patching import Patches, in_force

# Imported by name, because the package exports a function with the same name.
_SIMPLIFYING = importlib.import_module("sympy.simplify.simplify")

# torch 2.15 finds the maximum of two terms in different ways, many of which depend on ranges.
_ORDERED_BY_RANGES = "var_to_range" in inspect.signature(ShapeEnv.simplify).parameters

# State of the replacements: their version counter, and their number.
_Replaced = tuple[int, int]
# Queries, and whether each was known to hold.
_Answers = dict[Any, bool]


def sizes_simplified_once() -> Patches:
    """Return a context in which a term is simplified again only if the facts about it changed.

    torch 2.11 does not count how often symbols are replaced. There, only sympy's results are kept.
    """
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

    replacements: dict[tuple[Any, str], Any] = {
        (_SIMPLIFYING, "simplify"): simplify_by_sympy,
        (sympy, "simplify"): simplify_by_sympy,
    }
    if hasattr(ShapeEnv(), "_replacements_version_counter"):
        replacements |= {(ShapeEnv, "simplify"): simplify, (ShapeEnv, "_update_divisible"): update}
    return Patches(replacements)


@dataclass(frozen=True)
class _Simplified:
    """A simplified term, and the facts that the simplification used.

    Args:
        result: The result of the simplification.
        replaced: State of the shape environment's replacements at that time.
        zero: The remainders that torch looked up, and whether each was known to be 0.
        comparisons: Comparisons that decide a maximum of two terms, and whether each was known.
    """

    result: Any
    replaced: _Replaced
    zero: _Answers
    comparisons: _Answers

    def is_so(self, environment: ShapeEnv) -> bool:
        """Return whether torch would simplify the term to the same result now."""
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
        remainders: The remainders.
        replaced: State of the replacements when torch last removed remainders that had become constant.
        asked: A stack of dicts. Each lookup is recorded in the last one, if there is one.
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
