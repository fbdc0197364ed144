"""Answering what only the data can answer, so that a trace goes on where stock torch raises.

A shape environment is asked for the truth of a condition, or for a number. Where unknown numbers decide, it
raises `GuardOnDataDependentSymNode`; in this context someone may answer instead. The answer becomes an
assertion of the environment, as in torch's draft export, so that what follows from it is known from then on.
Seen on torch 2.11 to 2.13.

Source: `torch/fx/experimental/symbolic_shapes.py:ShapeEnv.evaluate_expr`, `_log_real_tensor_propagation`,
`torch/_subclasses/fake_tensor.py:FakeTensorMode._get_output_info_for_cache_entry`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    canonicalize_bool_expr,
)
from torch.utils._sympy.functions import Mod, PythonMod

from .decided_branches import asking_file
from .patching import Patches, in_force, original_of

Answer = bool | int | float
Kind = Literal["truth", "integer", "float"]

_MODULI = (Mod, PythonMod)
_WRITES_ENTRY = original_of(FakeTensorMode, "_get_output_info_for_cache_entry").__code__
_ASSERT = torch.ops.aten._assert_scalar.default
_ASSERTED = re.compile(r"Runtime assertion failed for expression (.+) on node '[^']*'")
_TRUTH_BOUND = re.compile(r"u[0-9]+ (?:>= 0|<= 1)")
_READS = frozenset({torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default})


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
        asked: The expression itself.
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
    asked: Any

    def answer_for(self, values: Mapping[str, Answer]) -> Answer | None:
        """Return the answer for values of unknown numbers by name; None if one that takes part is missing."""
        symbols = {symbol: values.get(str(symbol)) for symbol in self.asked.free_symbols}
        if not symbols or None in symbols.values():
            return None
        found = self.asked.xreplace(
            {
                symbol: sympy.sympify(int(value) if isinstance(value, bool) else value)
                for symbol, value in symbols.items()
            }
        )
        if self.kind == "truth":
            return bool(found) if found in (sympy.true, sympy.false) else None
        return (int(found) if self.kind == "integer" else float(found)) if found.is_number else None


@dataclass(frozen=True)
class Unasserted:
    """An answer with which a program computes what it would with the other one: it need not assert it.

    Args:
        answer: The answer.
    """

    answer: bool


@dataclass(frozen=True)
class Asserted:
    """What a program asserts for an answer, as torch prints it.

    Args:
        text: The assertion. It may be left out of a program where bounds say the same.
        same: Bounds that together say the same: `u0 >= 4` of `3 < u0`. Empty where none do.
        bounds: Bounds of numbers that follow from it and from what was known, which are asserted before.
    """

    text: str
    same: frozenset[str]
    bounds: frozenset[str]


def answered_questions(
    answer: Callable[[Question], Answer | Unasserted | None],
    asserted: Callable[[Question, Asserted], None] = lambda question, assertion: None,
) -> Patches:
    """Return a context in which `answer` is asked before a trace fails; None lets it fail."""
    stock = in_force(ShapeEnv, "evaluate_expr")

    def evaluate_expr(environment: ShapeEnv, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return stock(environment, orig_expr, *args, **kwargs)
        except GuardOnDataDependentSymNode as error:
            if _is_caught(sys._getframe(1)):
                raise
            question = _question(environment, orig_expr, error, asking_file(sys._getframe(1)))
            given = answer(question)
            if given is None:
                raise
            if isinstance(given, Unasserted):
                return sympy.sympify(given.answer)
        value = sympy.sympify(given)
        holds = _what_holds(environment, orig_expr, value)
        before = _ends(environment, orig_expr)
        with suppress(Exception):  # It may contradict a bound that the environment keeps for itself.
            environment.guard_or_defer_runtime_assert(holds, "assumed")
        canonical = canonicalize_bool_expr(holds)
        follow = frozenset(_ends(environment, orig_expr) - before)
        asserted(question, Asserted(str(canonical), _as_bounds(canonical), follow))
        return value

    return Patches({(ShapeEnv, "evaluate_expr"): evaluate_expr})


def unknowns_noted(note: Callable[[str], None]) -> Patches:
    """Return a context in which `note` gets the name of each number that the environment does not know."""

    def noting(name: str) -> Callable[..., Any]:
        stock = in_force(ShapeEnv, name)

        def create(environment: ShapeEnv, *args: Any, **kwargs: Any) -> Any:
            made = stock(environment, *args, **kwargs)
            for symbol in made.node.expr.free_symbols:
                note(str(symbol))
            return made

        return create

    names = ("create_unbacked_symint", "create_unbacked_symbool", "create_unbacked_symfloat")
    return Patches({(ShapeEnv, name): noting(name) for name in names if hasattr(ShapeEnv, name)})


def named_assertions(program: ExportedProgram, names: Mapping[str, str]) -> set[str]:
    """Give assertions of a program messages of their own, and return those that were found."""
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


def drop_unused_truths(program: ExportedProgram) -> None:
    """Remove what reads a truth value of which a program asserts no more than that it is 0 or 1.

    A device waits for the host there, once in each call.
    """
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        reads = [node for node in module.graph.nodes if node.target in _READS and _is_truth(node)]
        for node in reads:
            users = _users(node)
            if all(each.users or _is_bound_of_truth(each) for each in users):
                for each in reversed((node, *users)):
                    module.graph.erase_node(each)
                for symbol in node.meta.get("unbacked_bindings") or ():
                    program.range_constraints.pop(symbol, None)
        if reads:
            module.graph.eliminate_dead_code()
            module.recompile()


def _is_truth(read: torch.fx.Node) -> bool:
    asked = read.args[0]
    value = asked.meta.get("val") if isinstance(asked, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool


def _users(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return what is computed from a node, in the order of the graph."""
    found = {node}
    for each in node.graph.nodes:
        if not found.isdisjoint(each.all_input_nodes):
            found.add(each)
    return [each for each in node.graph.nodes if each in found and each is not node]


def _is_bound_of_truth(node: torch.fx.Node) -> bool:
    asserted = _ASSERTED.fullmatch(str(node.args[1])) if node.target is _ASSERT else None
    return asserted is not None and _TRUTH_BOUND.fullmatch(asserted[1]) is not None


def _is_caught(frame: FrameType | None) -> bool:
    """Return whether torch tries something out and goes on without it: the entry of a cache."""
    while frame is not None and frame.f_code is not _WRITES_ENTRY:
        frame = frame.f_back
    return frame is not None


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
        asked=expression,
    )


def _what_holds(environment: ShapeEnv, expression: Any, value: Any) -> Any:
    """Return the condition under which an expression has a value.

    Of what is 0 or more and not 0, it is that it is more than 0. It says the same, and torch draws a bound
    from it.
    """
    if value is not sympy.true and value is not sympy.false:
        return sympy.Eq(expression, value)
    match expression if value is sympy.true else sympy.Not(expression):
        case sympy.Ne(args=(size, sympy.Integer(p=0)) | (sympy.Integer(p=0), size)) if (
            environment.bound_sympy(size).lower >= 0
        ):
            return sympy.Lt(0, size)
        case holds:
            return holds


def _as_bounds(holds: Any) -> frozenset[str]:
    """Return the bounds of an integer that together say the same as a condition."""
    match holds:
        case sympy.Eq(args=(sympy.Symbol() as symbol, sympy.Integer() as number)):
            return frozenset({f"{symbol} >= {number}", f"{symbol} <= {number}"})
        case sympy.Le(args=(sympy.Integer() as number, sympy.Symbol() as symbol)):
            return frozenset({f"{symbol} >= {number}"})
        case sympy.Lt(args=(sympy.Integer() as number, sympy.Symbol() as symbol)) if symbol.is_integer:
            return frozenset({f"{symbol} >= {number + 1}"})
        case sympy.Le(args=(sympy.Symbol() as symbol, sympy.Integer() as number)):
            return frozenset({f"{symbol} <= {number}"})
        case sympy.Lt(args=(sympy.Symbol() as symbol, sympy.Integer() as number)) if symbol.is_integer:
            return frozenset({f"{symbol} <= {number - 1}"})
    return frozenset()


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
