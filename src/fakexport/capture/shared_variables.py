"""Variables outside of the modules that `forward` changes: of the classes of a model, and of their files."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fakexport.diagnostics import Span, columns_of, function_at, written_places
from fakexport.program import is_user_code

from .held_values import HeldValues, is_same, may_change

_ABSENT = object()


@dataclass(frozen=True)
class SharedVariables:
    """What the variables held.

    Args:
        of: Class or Python module -> what its variables hold by name.
        path: The file of each.
    """

    of: dict[type | types.ModuleType, dict[str, Any]]
    path: dict[type | types.ModuleType, str]


def shared_variables(root: nn.Module) -> SharedVariables:
    """Return the variables of the classes of a model that people wrote, and of the files of these.

    What `HeldValues` cannot tell is left out.
    """
    path = files_of_owners(root)
    held = HeldValues()
    return SharedVariables({owner: _values(owner, held) for owner in path}, path)


def files_of_owners(root: nn.Module) -> dict[type | types.ModuleType, str]:
    """Return the classes of a model that people wrote, and the Python modules of these, with their files."""
    kinds = {base for kind in {type(part) for part in root.modules()} for base in kind.__mro__}
    path: dict[type | types.ModuleType, str] = {
        kind: file for kind in kinds if (file := _file_of(kind)) is not None
    }
    files = {sys.modules.get(kind.__module__): file for kind, file in path.items()}
    return path | {module: file for module, file in files.items() if module is not None}


def _file_of(kind: type) -> str | None:
    """Return the file of a class that people wrote."""
    for member in vars(kind).values():
        if inspect.isfunction(member):
            path = inspect.unwrap(member).__code__.co_filename
            return path if is_user_code(path) else None
    return None


def _values(owner: type | types.ModuleType, held: HeldValues) -> dict[str, Any]:
    return {
        name: held.of(value)
        for name, value in list(vars(owner).items())
        if not name.startswith("__") and may_change(value)
    }


def changed_variables(before: SharedVariables) -> Iterator[tuple[str, Span | None]]:
    """Yield what was changed, `STEPS` of a file or `Model.steps` of a class, and where the code does it."""
    held = HeldValues()
    for owner, old in before.of.items():
        new = _values(owner, held)
        for name in dict.fromkeys((*old, *new)):
            if not is_same(old.get(name, _ABSENT), new.get(name, _ABSENT)):
                kind = owner.__name__ if isinstance(owner, type) else None
                shown = name if kind is None else f"{kind}.{name}"
                yield shown, next(_places(before.path[owner], name, kind), None)


def _places(path: str, name: str, kind: str | None) -> Iterator[Span]:
    """Yield where the functions of a file assign a variable, of the class `kind` or of the file, or change it
    in place.
    """
    lines = linecache.getlines(path)
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return
    for place in written_places(tree):
        span = Span(path, place.lineno, *columns_of(place, lines[place.lineno - 1]), origin="source")
        match place:
            case ast.Attribute(attr=found) if kind and found == name and _is_of_class(place.value, kind):
                pass
            case ast.Name(id=found) if kind is None and found == name:
                pass
            case _:
                continue
        function = function_at(span)
        if function is None or function.name == "__init__":
            continue
        if not (isinstance(place, ast.Name) and isinstance(place.ctx, ast.Store)) or _is_shared(
            name, function
        ):
            yield replace(span, function=function.name)


def _is_shared(name: str, function: ast.FunctionDef) -> bool:
    """Return whether a function says that a variable is not its own."""
    return any(isinstance(node, ast.Global) and name in node.names for node in ast.walk(function))


def _is_of_class(owner: ast.expr, kind: str) -> bool:
    """Return whether an expression names a class: `Model`, `cls`, `type(self)`, `self.__class__`; or `self`,
    whose list may be that of the class.
    """
    match owner:
        case ast.Name(id=name):
            return name in (kind, "cls", "self")
        case ast.Call(func=ast.Name(id="type")) | ast.Attribute(attr="__class__"):
            return True
    return False
