"""Detect changes of Python state by `forward`: attributes of modules, variables of classes and files."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from fakexport.exporting.program import is_user_code
from fakexport.rules.diagnostics import Span, function_at, function_of, span_of, written_places

from .held_values import HeldValues, is_same, may_change

Owner = type | types.ModuleType
"""A class or a Python module, that is, a file."""

_OF_TORCH = frozenset(
    {
        *("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"),
        *("training", "forward", "_flat_weights", "_flat_weight_refs"),
    }
)
# Hooks, and the flag with which transformers' models record that their hooks are installed.
_OF_HOOKS = ("_hooks", "_hooks_with_kwargs", "_always_called", "_hooks_installed")
_ABSENT = object()


@dataclass(frozen=True)
class StateChange:
    """A change of Python state.

    Args:
        kind: `attribute` of a module, or `variable` of a class or file.
        name: The name of the attribute or variable, such as `steps`, `STEPS` or `Model.steps`.
        span: The line that makes the change, if it can be found in the source.
        module_path: Path of the module with the attribute. "" for a variable.
    """

    kind: Literal["attribute", "variable"]
    name: str
    span: Span | None
    module_path: str = ""


class PythonState:
    """A snapshot of a model's attributes, and of the variables of its user-defined classes and their files.

    Variables that `HeldValues` cannot compare are omitted.
    """

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._attributes = _attributes_of(root)
        self._files = files_of_owners(root)
        held = HeldValues()
        self._variables = {owner: _variables_of(owner, held) for owner in self._files}

    def changes(self) -> Iterator[StateChange]:
        """Yield what has changed since the snapshot.

        A replaced module counts as a changed attribute of its parent. Its own attributes are not compared.
        """
        for path, (module, new) in _attributes_of(self._root).items():
            known, old = self._attributes.get(path, (None, {}))
            for name in _changed(old, new) if module is known else ():
                if name in old or not _is_only_cached(module, name):
                    yield StateChange("attribute", name, _assignment_of(module, name), path)
        held = HeldValues()
        for owner, before in self._variables.items():
            for name in _changed(before, _variables_of(owner, held)):
                kind = owner.__name__ if isinstance(owner, type) else None
                place = next(_places(self._files[owner], name, kind), None)
                yield StateChange("variable", f"{kind}.{name}" if kind else name, place)


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*old, *new)):
        if not is_same(old.get(name, _ABSENT), new.get(name, _ABSENT)):
            yield name


def _attributes_of(root: nn.Module) -> dict[str, tuple[nn.Module, dict[str, Any]]]:
    """Return every module by path, with its plain attributes, submodules, parameters and buffers.

    Internal attributes of torch's own layers, such as the flat weights of `nn.LSTM`, are excluded.
    """
    found, held = {}, HeldValues()
    for path, module in root.named_modules():
        kept = {} if _is_layer_of_torch(module) else vars(module)
        plain = {name: held.of(value) for name, value in kept.items() if is_plain_attribute(name)}
        parts = (module._modules, module._parameters, module._buffers)
        # A scripted module stores them in its own mappings.
        found[path] = (module, {**plain, **{name: part for held in parts for name, part in held.items()}})
    return found


def _is_layer_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith(("torch.nn.", "torch.ao.")) and type(module) is not nn.Module


def is_plain_attribute(name: str) -> bool:
    """Return whether a module attribute with this name belongs to the model, rather than to torch."""
    return name not in _OF_TORCH and not name.endswith(_OF_HOOKS)


def _is_only_cached(module: nn.Module, name: str) -> bool:
    """Return whether an attribute is the value of a `cached_property` that no method of the class assigns."""
    declared = inspect.getattr_static(type(module), name, None)
    return isinstance(declared, functools.cached_property) and _assignment_of(module, name) is None


def _assignment_of(module: nn.Module, name: str) -> Span | None:
    """Return the line at which a method, preferably `forward`, assigns or modifies `self.name`."""
    found: list[tuple[bool, Span]] = []
    for owner in type(module).__mro__:
        for member in vars(owner).values():
            method = member.fget if isinstance(member, property) else member
            if inspect.isfunction(method) and method.__name__ != "__init__":
                found += [(method.__name__ != "forward", span) for span in _assignments(method, name)]
    return min(found, key=lambda item: item[0])[1] if found else None


def _assignments(method: types.FunctionType, name: str) -> Iterator[Span]:
    code = inspect.unwrap(method).__code__
    if not is_user_code(path := code.co_filename) or (function := function_of(code)) is None:
        return
    for place, span in written_places(path, function):
        match place:
            case ast.Attribute(ast.Name(owner), attribute) if attribute == name:
                if owner in code.co_varnames[:1]:
                    yield span
    for node in ast.walk(function):
        match node:  # `self.register_buffer(name, ...)` or similar.
            case ast.Call(ast.Attribute(attr=called), [ast.Constant(registered), *_]) if registered == name:
                if called.startswith(("register_", "add_module")):
                    yield span_of(node, path, function.name)


def files_of_owners(root: nn.Module) -> dict[Owner, str]:
    """Return the user-defined classes of a model and their Python modules, with their files."""
    kinds = {base for kind in {type(part) for part in root.modules()} for base in kind.__mro__}
    path: dict[Owner, str] = {kind: file for kind in kinds if (file := _file_of(kind)) is not None}
    files = {sys.modules.get(kind.__module__): file for kind, file in path.items()}
    return path | {module: file for module, file in files.items() if module is not None}


def _file_of(kind: type) -> str | None:
    for member in vars(kind).values():
        if inspect.isfunction(member):
            path = inspect.unwrap(member).__code__.co_filename
            return path if is_user_code(path) else None
    return None


def _variables_of(owner: Owner, held: HeldValues) -> dict[str, Any]:
    return {
        name: held.of(value)
        for name, value in list(vars(owner).items())
        if not name.startswith("__") and may_change(value)
    }


def _places(path: str, name: str, kind: str | None) -> Iterator[Span]:
    """Yield the lines of a file that change a variable of the class `kind`, or of the file if it is None."""
    for place, span in written_places(path):
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
        is_assigned = isinstance(place, ast.Name) and isinstance(place.ctx, ast.Store)
        if not is_assigned or _is_global(name, function):
            yield replace(span, function=function.name)


def _is_global(name: str, function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Global) and name in node.names for node in ast.walk(function))


def _is_of_class(owner: ast.expr, kind: str) -> bool:
    """Return whether an expression refers to a class: `Model`, `cls`, `type(self)` or `self.__class__`.

    `self` counts too, because `self.items` may be an attribute of the class.
    """
    match owner:
        case ast.Name(id=name):
            return name in (kind, "cls", "self")
        case ast.Call(func=ast.Name(id="type")) | ast.Attribute(attr="__class__"):
            return True
    return False
