"""Answering what only the data can answer, so that a trace goes on where stock torch raises.

A shape environment is asked for the truth of a condition, or for a number. Where unknown numbers decide, it
raises `GuardOnDataDependentSymNode`; in this context someone may answer instead. The answer becomes an
assertion of the environment, as in torch's draft export, so that what follows from it is known from then on.
Seen on torch 2.11 to 2.13.

Source: `torch/fx/experimental/symbolic_shapes.py:ShapeEnv.evaluate_expr`, `_log_real_tensor_propagation`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    canonicalize_bool_expr,
)
from torch.utils._sympy.functions import Mod, PythonMod

from .decided_branches import asking_file
from .patching import Patches, in_force

__all__ = ["Answer", "Question", "answered_questions", "named_assertions"]

Answer = bool | int | float
Kind = Literal["truth", "integer", "float"]

_MODULI = (Mod, PythonMod)
_ASSERT = torch.ops.aten._assert_scalar.default
_ASSERTED = re.compile(r"Runtime assertion failed for expression (.+) on node '[^']*'")


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
        asking: The file of the code that asks, where nothing of torch is between that asks for itself.
        environment: The shape environment of the trace.
    """

    expression: str
    kind: Kind
    is_of_size: bool
    is_fit: bool
    low: int | None
    high: int | None
    error: RuntimeError
    asking: str | None
    environment: ShapeEnv


def answered_questions(
    answer: Callable[[Question], Answer | None],
    asserted: Callable[[Question, str, Sequence[str]], None] = lambda question, assertion, bounds: None,
) -> Patches:
    """Return a context in which `answer` is asked before a trace fails; None lets it fail.

    Args:
        answer: Answers a question.
        asserted: Called with what the program asserts for an answer, as torch prints it, and with the bounds
            of numbers that follow, which it asserts before.
    """
    stock = in_force(ShapeEnv, "evaluate_expr")

    def evaluate_expr(environment: ShapeEnv, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return stock(environment, orig_expr, *args, **kwargs)
        except GuardOnDataDependentSymNode as error:
            question = _question(environment, orig_expr, error, asking_file(sys._getframe(1)))
            given = answer(question)
            if given is None:
                raise
        value = sympy.sympify(given)
        holds = orig_expr if value is sympy.true else sympy.Not(orig_expr)
        if not isinstance(given, bool):
            holds = sympy.Eq(orig_expr, value)
        before = _ends(environment, orig_expr)
        with suppress(Exception):  # It may contradict a bound that the environment keeps for itself.
            environment.guard_or_defer_runtime_assert(holds, "assumed")
        asserted(question, str(canonicalize_bool_expr(holds)), sorted(_ends(environment, orig_expr) - before))
        return value

    return Patches({(ShapeEnv, "evaluate_expr"): evaluate_expr})


def named_assertions(program: ExportedProgram, names: Mapping[str, str]) -> set[str]:
    """Give assertions of a program messages of their own, and return those that were found.

    Args:
        program: Changed in place.
        names: The message of each, by the assertion as torch prints it.
    """
    found = set()
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.find_nodes(op="call_function", target=_ASSERT):
            asserted = _ASSERTED.fullmatch(str(node.args[1]))
            if asserted is not None and asserted[1] in names:
                node.args = (node.args[0], names[asserted[1]])
                found.add(asserted[1])
    return found


def _question(environment: ShapeEnv, expression: Any, error: RuntimeError, asking: str | None) -> Question:
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
        asking=asking,
        environment=environment,
    )


def _ends(environment: ShapeEnv, expression: Any) -> set[str]:
    """Return the bounds of the numbers of an expression, as torch prints its assertions of them."""
    ranges = {symbol: environment.var_to_range.get(symbol) for symbol in expression.free_symbols}
    return {
        f"{symbol} {sign} {end}"
        for symbol, found in ranges.items()
        if found is not None
        for sign, end in ((">=", found.lower), ("<=", found.upper))
    }


def _is_fit(equality: Any) -> bool:
    """Sizes are compared with 0 and 1 to find special cases, and a remainder with 0 to see what fits."""
    return equality.has(*_MODULI) or not {0, 1} & {int(side) for side in equality.args if side.is_Integer}


def _bounds(environment: ShapeEnv, expression: Any) -> tuple[int | None, int | None]:
    bounds = environment.bound_sympy(expression)
    low, high = (int(end) if end.is_Integer else None for end in (bounds.lower, bounds.upper))
    return low, high
