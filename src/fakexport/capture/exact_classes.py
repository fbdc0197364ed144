"""Where a model asks for the exact class of a tensor, which is a subclass while it is traced."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from fakexport.diagnostics import Span, columns_of, function_at
from fakexport.program import is_user_code

from .python_effects import PythonEffect

__all__ = ["exact_class_questions"]

# Two, since `re` looks quickly for the text that a pattern begins with.
_MAY_ASK = tuple(re.compile(rf"{asked}.*\b(?:Tensor|Parameter)\b") for asked in (r"type\(", "__class__"))
_CLASSES = frozenset({"Tensor", "Parameter"})


def exact_class_questions(module: nn.Module) -> Iterator[PythonEffect]:
    """Yield the comparisons such as `type(x) is torch.Tensor` of a model's own classes, and of functions of
    their files that they name.

    Whether `forward` comes there is not known.
    """
    owners = {owner for kind in {type(part) for part in module.modules()} for owner in kind.__mro__}
    classes = set(filter(_is_own, owners))
    for path in sorted({inspect.getfile(each) for each in classes}):
        linecache.checkcache(path)
        lines = linecache.getlines(path)
        text = "".join(lines)
        if not any(asks.search(text) for asks in _MAY_ASK):
            continue
        for node in _nodes(ast.parse(text), {each.__name__ for each in classes}):
            if isinstance(node, ast.Compare) and _asks_for_class(node):
                columns = columns_of(node, lines[node.lineno - 1])
                span = Span(path, node.lineno, *columns, origin="source")
                if (function := function_at(span)) is not None:
                    yield PythonEffect("class", ast.unparse(node), replace(span, function=function.name))


def _nodes(file: ast.Module, classes: set[str]) -> Iterator[ast.AST]:
    """Yield what is in the classes, and in functions of the file that they name."""
    functions = {each.name: each for each in file.body if isinstance(each, ast.FunctionDef)}
    left: list[ast.AST] = [
        each for each in file.body if isinstance(each, ast.ClassDef) and each.name in classes
    ]
    while left:
        for node in ast.walk(left.pop()):
            yield node
            if isinstance(node, ast.Name) and node.id in functions:
                left.append(functions.pop(node.id))


def _is_own(owner: type) -> bool:
    try:
        return is_user_code(inspect.getfile(owner))
    except (OSError, TypeError):
        return False  # Typed at a prompt, or generated.


def _asks_for_class(node: ast.Compare) -> bool:
    match node:
        case ast.Compare(left=asked, ops=[_], comparators=[classes]):
            listed = classes.elts if isinstance(classes, (ast.Tuple, ast.List, ast.Set)) else [classes]
            return _is_class_of(asked) and any(map(_is_tensor_class, listed))
    return False


def _is_class_of(asked: ast.expr) -> bool:
    match asked:
        case ast.Call(func=ast.Name(id="type"), args=[_], keywords=[]) | ast.Attribute(attr="__class__"):
            return True
    return False


def _is_tensor_class(named: ast.expr) -> bool:
    match named:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _CLASSES
    return False
