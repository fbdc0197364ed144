"""Where a model asks for a class that its values do not have while it is traced.

A tensor is of a subclass then, and a size that varies or a number of data is a symbol.
"""

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

# Three, since `re` looks quickly for the text that a pattern begins with.
_MAY_ASK = (
    re.compile(r"type\(.*\b(?:Tensor|Parameter|int|float)\b"),
    re.compile(r"__class__.*\b(?:Tensor|Parameter)\b"),
    re.compile(r"isinstance\(.*\b(?:int|float)\b"),
)
_CLASSES = frozenset({"Tensor", "Parameter"})
_NUMBERS = frozenset({"int", "float", "bool", "Number", "Integral", "Real"})
_SYMBOLS = frozenset({"SymInt", "SymFloat", "SymBool"})


def exact_class_questions(module: nn.Module, *, has_sizes: bool = True) -> Iterator[PythonEffect]:
    """Yield the comparisons such as `type(x) is torch.Tensor` of a model's own classes, and of functions of
    their files that they name; and the questions whether a number is an `int`, such as
    `isinstance(x.shape[0], int)`.

    Whether `forward` comes there is not known.

    Args:
        module: The model.
        has_sizes: Whether a size varies: else one is an `int`.
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
            if not isinstance(node, (ast.Compare, ast.Call)):
                continue
            span = Span(path, node.lineno, *columns_of(node, lines[node.lineno - 1]), origin="source")
            asks_for_class = isinstance(node, ast.Compare) and _asks_for_class(node)
            asked = _asked_number(node)
            if not asks_for_class and asked is None:
                continue
            if (function := function_at(span)) is None:
                continue
            if asks_for_class:
                yield PythonEffect("class", ast.unparse(node), replace(span, function=function.name))
            elif asked is not None and _is_number(asked, function, has_sizes=has_sizes):
                yield PythonEffect("number", ast.unparse(node), replace(span, function=function.name))


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


def _asked_number(node: ast.expr) -> ast.expr | None:
    """Return what is asked whether it is a number, and not whether it is a symbol of torch too."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance"), args=[asked, classes]):
            pass
        case ast.Compare(
            left=ast.Call(func=ast.Name(id="type"), args=[asked]), ops=[_], comparators=[classes]
        ):
            pass
        case _:
            return None
    listed = classes.elts if isinstance(classes, (ast.Tuple, ast.List, ast.Set)) else [classes]
    names = {getattr(each, "attr", getattr(each, "id", None)) for each in listed}
    return asked if names & _NUMBERS and not names & _SYMBOLS else None


def _is_number(asked: ast.expr, function: ast.FunctionDef, *, has_sizes: bool) -> bool:
    """Return whether an expression is a number of a tensor, or a variable that the function sets to one."""
    values = [asked]
    if isinstance(asked, ast.Name):
        values = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and asked.id in _assigned(node)
        ]
    return any(_reads_number(value, has_sizes=has_sizes) for value in values)


def _assigned(node: ast.Assign) -> set[str]:
    parts = [
        part
        for target in node.targets
        for part in (target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target])
    ]
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _reads_number(value: ast.expr, *, has_sizes: bool) -> bool:
    match value:
        case ast.Call(func=ast.Attribute(attr="item"), args=[]):
            return True
        case ast.Call(func=ast.Attribute(attr="size" | "numel")) | ast.Attribute(attr="shape"):
            return has_sizes
        case ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
            return _reads_number(inner, has_sizes=has_sizes)
        case ast.BinOp(left=left, right=right):
            return any(_reads_number(each, has_sizes=has_sizes) for each in (left, right))
    return False
