"""Let a callback decide data-dependent guards, so that a trace continues where torch would raise an error.

torch queries the shape environment for the truth or the value of an expression. If the result depends on
unbacked symbols, the environment raises `GuardOnDataDependentSymNode`. With the patches of this module, a
callback may answer the query instead. The environment adds the answer as a runtime assertion, as in torch's
draft export, so that the results of later queries can be derived from it. A trace can also continue after a
conversion to NumPy or a loop over a data-dependent number of rows. Seen on torch 2.11 to 2.13.

Source: `torch/fx/experimental/symbolic_shapes.py:ShapeEnv.evaluate_expr`, `_log_real_tensor_propagation`,
`torch/_subclasses/fake_tensor.py:FakeTensorMode._get_output_info_for_cache_entry`;
`torch/csrc/utils/tensor_numpy.cpp:tensor_to_numpy`; `torch/_tensor.py:Tensor.__array__`, `__iter__`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, TypeVar

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    canonicalize_bool_expr,
    free_unbacked_symbols,
)
from torch.utils._sympy.functions import Mod, PythonMod

from fakexport._torch.patching import Patches, in_force

from .decided_branches import asking_file

Answer = bool | int | float
_Function = TypeVar("_Function", bound=Callable[..., Any])
Kind = Literal["truth", "integer", "float"]

_MODULI = (Mod, PythonMod)
# Code that catches the error itself. Fake mode does when it writes to its dispatch cache.
_CATCHING = {FakeTensorMode._get_output_info_for_cache_entry.__code__}
_ASSERT = torch.ops.aten._assert_scalar.default
_ASSERTED = re.compile(r"Runtime assertion failed for expression (.+) on node '[^']*'")
_TRUTH_BOUND = re.compile(r"u[0-9]+ (?:>= 0|<= 1)")
_READS = frozenset({torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default})


@dataclass(frozen=True)
class Question:
    """A query that the shape environment cannot answer.

    Args:
        low, high: Known bounds of an integer, or None.
    """

    expression: str  # For example `Eq(u0, 1)` or `u0`.
    kind: Kind  # Whether the query is for a truth value, an integer or a float.
    is_of_size: bool  # Whether the expression contains the size of a tensor.
    is_fit: bool  # Whether it is an equality that checks whether shapes match (not a comparison with 0 or 1).
    low: int | None
    high: int | None
    error: RuntimeError  # The error that torch raised.
    asking: str | None  # File of the code that makes the query. torch code that only forwards it is skipped.
    asked: Any  # The expression as a sympy expression.

    def answer_for(self, values: Mapping[str, Answer]) -> Answer | None:
        """Compute the answer from the values of the unbacked symbols, given by name.

        Return None if a value is missing.
        """
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
    """An answer without an assertion, because the program's result is the same with the opposite answer."""

    answer: bool


@dataclass(frozen=True)
class Asserted:
    """The assertion with which a program checks that an answer is correct, in the format that torch prints.

    Args:
        same: Bounds that together are equivalent to the assertion: `u0 >= 4` for `3 < u0`. May be empty.
        bounds: Bounds that follow from this assertion and earlier ones. The program asserts them first.
    """

    text: str  # The assertion. A program may omit it if it asserts the equivalent bounds.
    same: frozenset[str]
    bounds: frozenset[str]


def answered_questions(
    answer: Callable[[Question], Answer | Unasserted | None],
    asserted: Callable[[Question, Asserted], None] = lambda question, assertion: None,
) -> Patches:
    """Return a context that calls `answer` if a query would fail the trace.

    Args:
        answer: Returns the answer to the query. If it returns None, the trace fails.
        asserted: Called with each answered query and its assertion.
    """
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
        with suppress(Exception):  # It may contradict an internal bound of the environment.
            environment.guard_or_defer_runtime_assert(holds, "assumed")
        canonical = canonicalize_bool_expr(holds)
        follow = frozenset(_ends(environment, orig_expr) - before)
        asserted(question, Asserted(str(canonical), _as_bounds(canonical), follow))
        return value

    return Patches({(ShapeEnv, "evaluate_expr"): evaluate_expr})


def unknowns_noted(note: Callable[[str], None]) -> Patches:
    """Return a context in which `note` is called with the name of each new unbacked symbol."""

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
    """Set the messages of a program's assertions. Return the assertions whose messages were set.

    Args:
        names: Text of an assertion -> new message. The program need not have the assertion.
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


def drop_unused_truths(program: ExportedProgram) -> None:
    """Remove nodes that read a truth value, if the program only uses it to assert that it is 0 or 1.

    Each such read would synchronize the device with the host on every call.
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
    """Return all nodes computed from a node, in graph order."""
    found = {node}
    for each in node.graph.nodes:
        if not found.isdisjoint(each.all_input_nodes):
            found.add(each)
    return [each for each in node.graph.nodes if each in found and each is not node]


def _is_bound_of_truth(node: torch.fx.Node) -> bool:
    asserted = _ASSERTED.fullmatch(str(node.args[1])) if node.target is _ASSERT else None
    return asserted is not None and _TRUTH_BOUND.fullmatch(asserted[1]) is not None


def catches_questions(function: _Function) -> _Function:
    """Mark a function that catches the error of a query. Its queries are not answered and not kept.

    A kept error would keep the frames of its traceback and thereby the results of operators. C++ functions
    such as `torch.full_like` return a copy of a result that Python holds, and a trace does not know the copy.
    """
    _CATCHING.add(function.__code__)
    return function


def _is_caught(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in _CATCHING:
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
        asked=expression,
    )


def _what_holds(environment: ShapeEnv, expression: Any, value: Any) -> Any:
    """Return the condition under which an expression has the given value.

    For a nonnegative size, the condition `size != 0` is returned as `0 < size`, because torch derives a bound
    only from the latter.
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
    """Return the bounds of an integer that together are equivalent to a condition, if there are any."""
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
    """Return the bounds of an expression's symbols, in the format in which torch prints assertions."""
    ranges = {symbol: environment.var_to_range.get(symbol) for symbol in expression.free_symbols}
    return {
        f"{symbol} {sign} {end}"
        for symbol, found in ranges.items()
        if found is not None
        for sign, end in ((">=", found.lower), ("<=", found.upper))
    }


def _is_fit(equality: Any) -> bool:
    """Return whether an equality checks that two shapes match.

    A comparison of a size with 0 or 1 detects a special case instead, so return False. If a remainder is
    compared with 0, return True, because this checks whether sizes are divisible.
    """
    return equality.has(*_MODULI) or not {0, 1} & {int(side) for side in equality.args if side.is_Integer}


def _bounds(environment: ShapeEnv, expression: Any) -> tuple[int | None, int | None]:
    bounds = environment.bound_sympy(expression)
    low, high = (int(end) if end.is_Integer else None for end in (bounds.lower, bounds.upper))
    return low, high


def answered_numpy_reads(may_go_on: Callable[[Exception], bool]) -> Patches:
    """Return a context in which a failing `numpy()` returns an array of ones if `may_go_on(error)` is true.

    `numpy()` rejects tensor subclasses such as the tensors of a trace. `numpy.asarray(tensor)` also calls it.
    """
    stock = in_force(torch.Tensor, "numpy")

    def numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
        try:
            return stock(tensor, force=force)
        except (RuntimeError, TypeError) as error:
            if not may_go_on(error):
                raise
        import numpy

        name = str(tensor.dtype).removeprefix("torch.")
        return numpy.ones([int(size) for size in tensor.shape], "float32" if name == "bfloat16" else name)

    return Patches({(torch.Tensor, "numpy"): numpy})


def iterated_tensors(rows: Callable[[torch.Tensor], Sequence[Any] | None]) -> Patches:
    """Return a context in which a loop over a data-dependent number of rows iterates over `rows(tensor)`.

    If `rows` returns None, the loop iterates over the tensor itself.
    """
    stock = in_force(torch.Tensor, "__iter__")

    def iterate(tensor: torch.Tensor) -> Iterator[Any]:
        if tensor.dim() and free_unbacked_symbols(tensor.shape[0]) and (found := rows(tensor)) is not None:
            return iter(found)
        return stock(tensor)  # type: ignore[no-any-return]

    return Patches({(torch.Tensor, "__iter__"): iterate})
