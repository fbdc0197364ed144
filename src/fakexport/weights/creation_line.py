"""Where a module's code creates a tensor, and whether its `forward` changes it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache

from torch import nn

from fakexport.diagnostics import Span

_REGISTERING = {"register_buffer", "__setattr__"}


def creation_span(owner: nn.Module, name: str) -> Span | None:
    """Return the line that creates `self.NAME`: in the constructor, else in another method."""
    found = [
        (function != "__init__", span)
        for cls in _classes(owner)
        for function, line, written in _writes(cls)
        if written == name and (span := _span(cls, function, line)) is not None
    ]
    return min(found, key=lambda item: item[0])[1] if found else None


def written_at_run_time(owner: nn.Module, name: str) -> bool:
    """Return whether `forward`, or a method that it calls, writes `self.NAME`."""
    if _is_dynamic_rope(owner, name):
        return True
    classes = _classes(owner)
    calls = {function: called for cls in reversed(classes) for function, called in _calls(cls).items()}
    reached, pending = set(), ["forward"]
    while pending:
        if (function := pending.pop()) not in reached:
            reached.add(function)
            pending += calls.get(function, ())
    reached.discard("__init__")
    writes = (found for cls in classes for found in _writes(cls))
    return any(written == name and function in reached for function, _, written in writes)


def _classes(owner: nn.Module) -> list[type]:
    """Return the classes of a module that are not torch's base, from its own upwards."""
    return [cls for cls in type(owner).__mro__ if issubclass(cls, nn.Module) and cls is not nn.Module]


def _is_dynamic_rope(owner: nn.Module, name: str) -> bool:
    """Return whether transformers replaces rotary frequencies for longer inputs, outside of the class."""
    kinds = getattr(owner, "rope_type", None)
    named = kinds.values() if isinstance(kinds, dict) else [kinds]
    is_frequency = name.endswith("inv_freq") and "original" not in name
    return is_frequency and any(str(kind) in ("dynamic", "longrope") for kind in named)


@cache
def _tree(cls: type) -> tuple[ast.ClassDef, str, int] | None:
    try:
        lines, first = inspect.getsourcelines(cls)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        path = inspect.getsourcefile(cls) or ""
    except (OSError, TypeError, SyntaxError):
        return None
    found = tree.body[0]
    return (found, path, first) if isinstance(found, ast.ClassDef) else None


def _functions(cls: type) -> Iterator[ast.FunctionDef]:
    if (known := _tree(cls)) is not None:
        yield from (node for node in known[0].body if isinstance(node, ast.FunctionDef))


def _span(cls: type, function: str, line: int) -> Span | None:
    known = _tree(cls)
    return known and Span(known[1], known[2] + line - 1, function=function, origin="source")


def _writes(cls: type) -> Iterator[tuple[str, int, str]]:
    """Yield method, line and name of everything that a class writes into `self`."""
    for function in _functions(cls):
        for node in ast.walk(function):
            for name in _written(node):
                yield function.name, node.lineno, name  # type: ignore[attr-defined]


def _written(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Assign(targets):
            yield from (name for target in targets for name in _targets(target))
        case ast.AnnAssign(target) | ast.AugAssign(target):
            yield from _targets(target)
        case ast.Call(ast.Attribute(attr=called), [ast.Constant(str(name)), *_]) if called in _REGISTERING:
            yield name
        case ast.Call(ast.Attribute(ast.Attribute(ast.Name("self"), name), called)):
            if called.endswith("_") and not called.endswith("__"):
                yield name


def _targets(target: ast.AST) -> Iterator[str]:
    match target:
        case ast.Tuple(parts) | ast.List(parts):
            for part in parts:
                yield from _targets(part)
        case ast.Subscript(value):
            yield from _targets(value)
        case ast.Attribute(ast.Name("self"), name):
            yield name


@cache
def _calls(cls: type) -> dict[str, tuple[str, ...]]:
    """Return the methods of `self` that each method calls."""
    called = ((function.name, ast.unparse(function)) for function in _functions(cls))
    return {name: tuple(re.findall(r"\bself\.(\w+)\(", text)) for name, text in called}
