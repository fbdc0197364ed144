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

__all__ = ["DecidedBranches"]

_SMALL = (0, 1)
_ASKING = frozenset(
    str(module.__file__) for module in (torch, recording, sym_node, symbolic_shapes, patching)
)


class DecidedBranches:
    """In the context `watched()`, keeps the decisions of the user's code that sizes 0 or 1 would turn around.

    Args:
        is_user_code: Whether a file was written by the author of the model. What torch and model libraries
            ask (is a size 1, so that it is broadcast? is the batch 1, so that it may be packed?) makes no
            difference to values as a rule, and is not kept: programs would refuse a batch of 1.
    """

    def __init__(self, is_user_code: Callable[[str], bool]) -> None:
        self._is_user_code = cache(is_user_code)
        self._found: dict[Any, None] = {}
        self._guarded: set[Any] = set()

    def watched(self) -> Patches:
        """The context around a trace."""
        stock = in_force(ShapeEnv, "evaluate_expr")

        def evaluate_expr(environment: ShapeEnv, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
            before = len(environment.guards)
            answer = stock(environment, orig_expr, *args, **kwargs)
            if len(environment.guards) > before or environment._suppress_guards_tls():
                self._guarded.add(orig_expr)
            elif orig_expr not in self._guarded and self._asks(sys._getframe(1)):
                self._keep(orig_expr, answer)
            return answer

        return Patches({(ShapeEnv, "evaluate_expr"): evaluate_expr})

    def guards(self, program: ExportedProgram) -> list[str]:
        """What was kept, as torch prints guards; without what its own guards say."""
        environment = _environment(program)
        if environment is None or not self._found:
            return []
        sources = environment.var_to_sources
        local = {
            symbol
            for symbol, found in sources.items()
            if found and not any(isinstance(source, ConstantSource) for source in found)
        }
        printer = ShapeGuardPythonPrinter(sources, lambda source: source.name, sources)
        known = set(program._guards_code)
        texts = (printer.doprint(holds) for holds in self._found if holds.free_symbols <= local)
        return [text for text in dict.fromkeys(texts) if text not in known]

    def _keep(self, question: Any, answer: Any) -> None:
        if answer in (sympy.true, sympy.false) and question.free_symbols:
            holds = question if answer == sympy.true else sympy.Not(question)
            if holds not in self._found and _is_turned(holds):
                self._found[holds] = None

    def _asks(self, frame: FrameType | None) -> bool:
        """Whether the user's code asks, and nothing of torch between."""
        while frame is not None and (
            frame.f_code.co_filename in _ASKING or frame.f_code.co_filename.startswith("<")
        ):
            frame = frame.f_back
        return frame is not None and self._is_user_code(frame.f_code.co_filename)


@cache
def _is_turned(holds: Any) -> bool:
    """Whether a size of 0 or 1 makes the condition false, the others large."""
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
