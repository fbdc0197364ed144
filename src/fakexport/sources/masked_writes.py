"""Conditions that ask whether a mask is empty, before a line that writes where it is set."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from fakexport._torch.patching import Patches

__all__ = ["masked_writes"]

_OVIS2 = "transformers.models.ovis2.modeling_ovis2"


@contextmanager
def masked_writes(module: nn.Module) -> Iterator[None]:
    """Enter a context in which Ovis2 writes its indicator tokens without asking whether there are any.

    `if mask.any(): embeds[mask] = value` writes nothing where the mask is empty, so the line alone computes
    the same. Neither answer of the condition fits a program: the text of an image has some of the tokens.

    Args:
        module: The model.
    Source: transformers 5.17 to 5.23, `models/ovis2/modeling_ovis2.py:Ovis2Model.forward`.
    """
    models: Any = sys.modules.get(_OVIS2)
    if models is None or not any(isinstance(part, models.Ovis2Model) for part in module.modules()):
        yield
        return
    forward = models.can_return_tuple(_unconditional(inspect.unwrap(models.Ovis2Model.forward)))
    with Patches({(models.Ovis2Model, "forward"): forward}):
        yield


@cache
def _unconditional(function: FunctionType) -> FunctionType:
    """Return a function without the conditions `if MASK.any():` of lines `X[MASK] = VALUE`; its lines keep
    their places.
    """
    lines, first = inspect.getsourcelines(function)
    indent = len(lines[0]) - len(lines[0].lstrip())
    tree = _Unconditional().visit(ast.parse(textwrap.dedent("".join(lines))))
    (definition,) = tree.body
    definition.decorator_list.clear()
    for node in ast.walk(tree):
        if isinstance(node, (ast.expr, ast.stmt, ast.arg, ast.keyword)):
            node.lineno += first - 1
            node.col_offset += indent
            node.end_lineno = (node.end_lineno or node.lineno) + first - 1
            node.end_col_offset = (node.end_col_offset or 0) + indent
    compiled = compile(tree, function.__code__.co_filename, "exec", dont_inherit=True)
    code = next(each for each in compiled.co_consts if isinstance(each, CodeType))
    changed = FunctionType(
        code.replace(co_qualname=function.__code__.co_qualname),
        function.__globals__,
        function.__name__,
        function.__defaults__,
    )
    changed.__kwdefaults__ = function.__kwdefaults__
    changed.__annotations__ = function.__annotations__
    return changed


class _Unconditional(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        match node:
            case ast.If(
                test=ast.Call(func=ast.Attribute(value=ast.Name(id=asked), attr="any"), args=[], keywords=[]),
                body=[ast.Assign(targets=[ast.Subscript(slice=ast.Name(id=written))])],
                orelse=[],
            ) if asked == written:
                return node.body
        return node
