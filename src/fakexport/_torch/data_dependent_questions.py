"""Answering what only the data can answer, so that a trace goes on where stock torch raises.

A shape environment is asked for the truth of a condition, or for a number. Where unknown numbers decide, it
raises `GuardOnDataDependentSymNode`; in this context someone may answer instead. The answer becomes an
assertion of the environment, as in torch's draft export, so that what follows from it is known from then on.
Seen on torch 2.11 to 2.13.

Source: `torch/fx/experimental/symbolic_shapes.py:ShapeEnv.evaluate_expr`, `_log_real_tensor_propagation`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import sympy
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.utils._sympy.functions import Mod, PythonMod

from .patching import Patches, in_force

__all__ = ["Answer", "Question", "answered_questions"]

Answer = bool | int | float
Kind = Literal["truth", "integer", "float"]

_MODULI = (Mod, PythonMod)


@dataclass(frozen=True)
class Question:
    """What the environment cannot know.

    Args:
        expression: Such as `Eq(u0, 1)` or `u0`.
        kind: A condition, or the number that is wanted.
        is_of_size: The size of a tensor takes part in it.
        is_fit: A condition that holds where shapes fit: an equality that is not one with 0 or 1.
        low, high: Known bounds of an integer, or None.
        error: What stock torch raises.
    """

    expression: str
    kind: Kind
    is_of_size: bool
    is_fit: bool
    low: int | None
    high: int | None
    error: RuntimeError


def answered_questions(answer: Callable[[Question], Answer | None]) -> Patches:
    """Return a context in which `answer` is asked before a trace fails; None lets it fail."""
    stock = in_force(ShapeEnv, "evaluate_expr")

    def evaluate_expr(environment: ShapeEnv, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return stock(environment, orig_expr, *args, **kwargs)
        except GuardOnDataDependentSymNode as error:
            given = answer(_question(environment, orig_expr, error))
            if given is None:
                raise
        value = sympy.sympify(given)
        holds = orig_expr if value is sympy.true else sympy.Not(orig_expr)
        with suppress(Exception):  # It may contradict a bound that the environment keeps for itself.
            environment.guard_or_defer_runtime_assert(
                holds if isinstance(given, bool) else sympy.Eq(orig_expr, value), "assumed"
            )
        return value

    return Patches({(ShapeEnv, "evaluate_expr"): evaluate_expr})


def _question(environment: ShapeEnv, expression: Any, error: RuntimeError) -> Question:
    is_truth = expression.is_Boolean or expression.is_Relational
    kind: Kind = "truth" if is_truth else "integer" if expression.is_integer else "float"
    low, high = _bounds(environment, expression) if kind == "integer" else (None, None)
    return Question(
        expression=str(expression),
        kind=kind,
        is_of_size=any(symbol in environment.size_like for symbol in expression.free_symbols),
        is_fit=isinstance(expression, sympy.Eq) and _is_fit(expression),
        low=low,
        high=high,
        error=error,
    )


def _is_fit(equality: Any) -> bool:
    """Sizes are compared with 0 and 1 to find special cases, and a remainder with 0 to see what fits."""
    return equality.has(*_MODULI) or not {0, 1} & {int(side) for side in equality.args if side.is_Integer}


def _bounds(environment: ShapeEnv, expression: Any) -> tuple[int | None, int | None]:
    bounds = environment.bound_sympy(expression)
    low, high = (int(end) if end.is_Integer else None for end in (bounds.lower, bounds.upper))
    return low, high
