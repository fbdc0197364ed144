"""Questions about sizes that torch answers without a guard, since a symbol stands for sizes of 2 or more.

`if x.shape[1] == 1` is false for every symbol of torch, so no guard is recorded, and the program takes sizes
0 and 1 all the same: it goes the way of the others for them. Seen on torch 2.11 to 2.13.

Source: `torch/fx/experimental/symbolic_shapes.py:ShapeEnv.evaluate_expr`, `torch/__init__.py:SymBool`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.export import ExportedProgram
from torch.fx.experimental import recording, sym_node, symbolic_shapes
from torch.fx.experimental.symbolic_shapes import ShapeEnv, ShapeGuardPythonPrinter

from . import patching
from .patching import Patches, in_force
from .symbolic_numbers import expression_of

_SMALL = (0, 1)
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_ASKING = frozenset(
    (__file__, *(str(module.__file__) for module in (torch, recording, sym_node, symbolic_shapes, patching)))
)


class DecidedBranches:
    """In the context `watched()`, keeps the decisions about sizes that 0 or 1 would turn around.

    Args:
        is_user_code: Whether a file was written by the author of the model. What model libraries ask (is the
            batch 1, so that it may be packed?) makes no difference to values as a rule: programs would refuse
            a batch of 1. It is kept where it does, for queries shorter than the keys of a causal attention.
        is_library_code: Whether a file belongs to a model library. What torch itself asks (is a size 1, so
            that it is broadcast?) is never kept.
    """

    def __init__(self, is_user_code: Callable[[str], bool], is_library_code: Callable[[str], bool]) -> None:
        self._is_user_code = cache(is_user_code)
        self._is_library_code = cache(is_library_code)
        self._found: dict[Any, None] = {}
        self._found_by_libraries: dict[Any, None] = {}
        self._guarded: set[Any] = set()

    def watched(self) -> Patches:
        """Return the context around a trace."""
        stock = in_force(ShapeEnv, "evaluate_expr")

        def evaluate_expr(environment: ShapeEnv, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
            if orig_expr in self._guarded:
                return stock(environment, orig_expr, *args, **kwargs)
            before = len(environment.guards)
            answer = stock(environment, orig_expr, *args, **kwargs)
            if len(environment.guards) > before:
                self._guarded.add(orig_expr)
            # The memo of operators asks without guards what code may ask too.
            elif (
                not environment._suppress_guards_tls()
                and (asking := asking_file(sys._getframe(1))) is not None
            ):
                self._keep(asking, orig_expr, answer)
            return answer

        return Patches({(ShapeEnv, "evaluate_expr"): evaluate_expr})

    def guards(self, program: ExportedProgram) -> list[str]:
        """Return what was kept, as torch prints guards; without what its own guards say."""
        environment = _environment(program)
        if environment is None or not (self._found or self._found_by_libraries):
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
            if holds not in found and _is_turned(holds):
                found[holds] = None


def asking_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the code that asks, with nothing of torch between that asks for itself."""
    while frame is not None and (
        frame.f_code.co_filename in _ASKING or frame.f_code.co_filename.startswith("<")
    ):
        frame = frame.f_back
    return frame


def asking_file(frame: FrameType | None) -> str | None:
    """Return the file of the code that asks, as `asking_frame` finds it."""
    found = asking_frame(frame)
    return None if found is None else found.f_code.co_filename


def _short_query_lengths(program: ExportedProgram) -> set[Any]:
    """Return the symbols of the queries' lengths, in causal attention over keys that may be more.

    A causal mask makes a single query see the first key alone, and libraries pass none then; transformers
    asks `query.shape[2] > 1`, and cuts the keys off. With as many keys as queries it makes no difference.
    """
    symbols: set[Any] = set()
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if node.target is _ATTENTION and _is_causal(node):
                queries, keys = _length(node.args[0]), _length(_uncut(node.args[1]))
                if queries != keys:
                    symbols |= queries.free_symbols
    return symbols


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
def _is_turned(holds: Any) -> bool:
    """Return whether a size of 0 or 1 makes the condition false, the others large."""
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
    except Exception:  # A division by zero, which a size of 0 may lead to.
        return False
    return None if value not in (sympy.true, sympy.false) else bool(value)


def _environment(program: ExportedProgram) -> ShapeEnv | None:
    for node in program.graph.find_nodes(op="placeholder"):
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        environment = None if mode is None else mode.shape_env
        if isinstance(environment, ShapeEnv):
            return environment
    return None
