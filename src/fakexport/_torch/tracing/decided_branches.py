"""Find size comparisons that torch decides without a guard, assuming that dynamic sizes are 2 or more.

`if x.shape[1] == 1` is false for every dynamic dimension, so torch records no guard. The program still
accepts sizes 0 and 1, but takes the branch for larger sizes. `x.squeeze()` makes the same decision inside of
torch: with a size of 1, its result has fewer dimensions than in the trace. Seen on torch 2.11 to 2.13.

Source: `torch/fx/experimental/symbolic_shapes.py:ShapeEnv.evaluate_expr`, `torch/__init__.py:SymBool`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import FrameType
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.export import ExportedProgram
from torch.fx.experimental import recording, sym_node, symbolic_shapes
from torch.fx.experimental.symbolic_shapes import ShapeEnv, ShapeGuardPythonPrinter

from fakexport._torch import patching
from fakexport._torch.patching import Patches, in_force

from .symbolic_numbers import expression_of

_SMALL = (0, 1)
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_SQUEEZES = (torch.ops.aten.squeeze, torch.ops.aten.squeeze_)
_ASKING = frozenset(
    (__file__, *(str(module.__file__) for module in (torch, recording, sym_node, symbolic_shapes, patching)))
)


class DecidedBranches:
    """Collect the comparisons of sizes that have a different result for a size of 0 or 1.

    Comparisons are collected in the context `watched()`.

    Args:
        is_user_code: Returns whether a file belongs to the model's author. All comparisons in such files are
            kept.
        is_library_code: Returns whether a file belongs to a model library. Comparisons in libraries (such as
            a check whether the batch size is 1) rarely affect values, and guards on them would reject a batch
            size of 1. An exception is the query length of causal attention that may have more keys than
            queries. It affects values, so its comparisons are kept. Comparisons in torch itself (such as a
            check whether a dimension is broadcast) are never kept.
    """

    def __init__(self, is_user_code: Callable[[str], bool], is_library_code: Callable[[str], bool]) -> None:
        self._is_user_code = cache(is_user_code)
        self._is_library_code = cache(is_library_code)
        self._found: dict[Any, None] = {}
        self._found_by_libraries: dict[Any, None] = {}
        self._guarded: set[Any] = set()

    def watched(self) -> Patches:
        """Return the context in which a trace is observed."""
        stock = in_force(ShapeEnv, "evaluate_expr")

        def evaluate_expr(environment: ShapeEnv, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
            if orig_expr in self._guarded:
                return stock(environment, orig_expr, *args, **kwargs)
            before = len(environment.guards)
            answer = stock(environment, orig_expr, *args, **kwargs)
            if len(environment.guards) > before:
                self._guarded.add(orig_expr)
            # Queries with suppressed guards come from fakexport's cache of operators, not from the code.
            elif (
                not environment._suppress_guards_tls()
                and (asking := asking_file(sys._getframe(1))) is not None
            ):
                self._keep(asking, orig_expr, answer)
            return answer

        return Patches({(ShapeEnv, "evaluate_expr"): evaluate_expr})

    def guards(self, program: ExportedProgram, file_of: Callable[[torch.fx.Node], str | None]) -> list[str]:
        """Return guards, in torch's format, for recorded comparisons that the program does not check yet.

        Args:
            program: The program.
            file_of: Returns the file whose code called a node's operator.
        """
        environment = _environment(program)
        if environment is None:
            return []
        for node in _nodes(program):
            if getattr(node.target, "overloadpacket", None) in _SQUEEZES:
                for holds in _unsqueezed(node):
                    self._keep(file_of(node) or "", holds, sympy.true)
        if not (self._found or self._found_by_libraries):
            return []
        sources = environment.var_to_sources
        local = {
            symbol
            for symbol, found in sources.items()
            if found and not any(isinstance(source, ConstantSource) for source in found)
        }
        lengths = _short_query_lengths(program) if self._found_by_libraries else set()
        kept = {**self._found, **{q: None for q in self._found_by_libraries if q.free_symbols & lengths}}
        printer = ShapeGuardPythonPrinter(sources, lambda source: source.name, sources)
        known = set(program._guards_code)
        texts = (printer.doprint(holds) for holds in kept if holds.free_symbols <= local)
        return [text for text in dict.fromkeys(texts) if text not in known]

    def _keep(self, path: str, question: Any, answer: Any) -> None:
        is_user = self._is_user_code(path)
        if not (is_user or self._is_library_code(path)):
            return
        found = self._found if is_user else self._found_by_libraries
        if answer in (sympy.true, sympy.false) and question.free_symbols:
            holds = question if answer == sympy.true else sympy.Not(question)
            if holds not in found and _may_fail_for_small_sizes(holds):
                found[holds] = None


def asking_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the code that makes a query. Frames of torch that only forward it are skipped."""
    while frame is not None and (
        frame.f_code.co_filename in _ASKING or frame.f_code.co_filename.startswith("<")
    ):
        frame = frame.f_back
    return frame


def asking_file(frame: FrameType | None) -> str | None:
    """Return the file of the frame that `asking_frame` returns."""
    found = asking_frame(frame)
    return None if found is None else found.f_code.co_filename


def _short_query_lengths(program: ExportedProgram) -> set[Any]:
    """Return the symbols of query lengths in causal attention whose keys may be longer.

    With a causal mask, a single query would only attend to the first key. Therefore, libraries pass no mask
    in this case: transformers checks `query.shape[2] > 1`, and slices the keys. If there are as many keys as
    queries, the mask makes no difference.
    """
    symbols: set[Any] = set()
    for node in _nodes(program):
        if node.target is _ATTENTION and _is_causal(node):
            queries, keys = _length(node.args[0]), _length(_uncut(node.args[1]))
            if queries != keys:
                symbols |= queries.free_symbols
    return symbols


def _nodes(program: ExportedProgram) -> Iterator[torch.fx.Node]:
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


def _unsqueezed(node: torch.fx.Node) -> Iterator[Any]:
    """Yield a condition for each symbolic size that a `squeeze` would remove if it were 1.

    A squeezed tensor that `forward` only returns is correct for every size.
    """
    if all(user.op == "output" for user in node.users):
        return
    value = node.args[0].meta["val"]  # type: ignore[union-attr]
    dims: Any = node.args[1] if len(node.args) > 1 else range(value.dim())
    for dim in (dims,) if isinstance(dims, int) else dims:
        if isinstance(size := value.shape[dim], torch.SymInt):
            yield sympy.Ne(expression_of(size), 1)


def _is_causal(node: torch.fx.Node) -> bool:
    return bool(node.kwargs.get("is_causal") or (len(node.args) > 5 and node.args[5]))


def _uncut(node: Any) -> Any:
    while node.target is torch.ops.aten.slice.Tensor:
        node = node.args[0]
    return node


def _length(node: Any) -> Any:
    length = node.meta["val"].shape[-2]
    return expression_of(length) if isinstance(length, torch.SymInt) else sympy.Integer(length)


@cache
def _may_fail_for_small_sizes(holds: Any) -> bool:
    """Return whether a condition can be false if its sizes include 0 or 1.

    Each size alone is set to 0 and to 1, and then all sizes at once.
    """
    symbols = sorted(holds.free_symbols, key=str)
    if not symbols or len(symbols) > 4:
        return False
    large = {symbol: sympy.Integer(1009 + 2 * index) for index, symbol in enumerate(symbols)}
    cases = [{**large, symbol: sympy.Integer(size)} for symbol in symbols for size in _SMALL]
    cases += [dict.fromkeys(symbols, sympy.Integer(size)) for size in _SMALL]
    return any(_value(holds, case) is False for case in cases)


def _value(holds: Any, case: dict[Any, Any]) -> bool | None:
    try:
        value = holds.xreplace(case)
    except Exception:  # A size of 0 may cause a division by zero.
        return False
    return None if value not in (sympy.true, sympy.false) else bool(value)


def _environment(program: ExportedProgram) -> ShapeEnv | None:
    for node in program.graph.find_nodes(op="placeholder"):
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        environment = None if mode is None else mode.shape_env
        if isinstance(environment, ShapeEnv):
            return environment
    return None
