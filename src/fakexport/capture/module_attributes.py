"""Plain attributes of modules that `forward` changes."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

from torch import nn

from fakexport.diagnostics import Span, columns_of, written_places
from fakexport.program import is_user_code

from .held_values import HeldValues, is_same

# Path of a module -> the module, and what its attributes hold by name.
ModuleAttributes = dict[str, tuple[nn.Module, dict[str, Any]]]

_OF_TORCH = frozenset(
    {
        *("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"),
        *("training", "forward", "_flat_weights", "_flat_weight_refs"),
    }
)
# Hooks themselves, and the flag of transformers' models that theirs are installed.
_OF_HOOKS = ("_hooks", "_hooks_with_kwargs", "_always_called", "_hooks_installed")
_ABSENT = object()


def attributes_of(root: nn.Module) -> ModuleAttributes:
    """Return every module by its path, with its plain attributes, modules, parameters and buffers.

    Of containers and objects, what they hold now; of torch's own layers, not what these note down for
    themselves, as `nn.LSTM` does with its flat weights.
    """
    found, held = {}, HeldValues()
    for path, module in root.named_modules():
        kept = {} if _is_layer_of_torch(module) else vars(module)
        plain = {name: held.of(value) for name, value in kept.items() if is_plain_attribute(name)}
        parts = (module._modules, module._parameters, module._buffers)
        # A scripted module keeps them in mappings of its own.
        found[path] = (module, {**plain, **{name: part for held in parts for name, part in held.items()}})
    return found


def _is_layer_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith(("torch.nn.", "torch.ao.")) and type(module) is not nn.Module


def is_plain_attribute(name: str) -> bool:
    """Return whether an attribute of a module is none of torch's own."""
    return name not in _OF_TORCH and not name.endswith(_OF_HOOKS)


def changed_attributes(root: nn.Module, before: ModuleAttributes) -> Iterator[tuple[str, str, nn.Module]]:
    """Return the path, name and module of each attribute that is not what it was.

    A module in the place of another one is an attribute of the module that has it; its own are new with it.
    """
    after = attributes_of(root)
    for path, (module, new) in after.items():
        known, old = before.get(path, (None, {}))
        if module is not known:
            continue
        for name in dict.fromkeys((*old, *new)):
            is_changed = not is_same(old.get(name, _ABSENT), new.get(name, _ABSENT))
            if is_changed and (name in old or not _is_only_cached(module, name)):
                yield path, name, module


def _is_only_cached(module: nn.Module, name: str) -> bool:
    """Return whether the class declares that a value is computed once and stays, and never assigns it."""
    declared = inspect.getattr_static(type(module), name, None)
    return isinstance(declared, functools.cached_property) and assignment_of(module, name) is None


def assignment_of(module: nn.Module, name: str) -> Span | None:
    """Return where a method assigns `self.name`, or changes it in place; `forward` first."""
    found: list[tuple[bool, Span]] = []
    for owner in type(module).__mro__:
        for member in vars(owner).values():
            method = member.fget if isinstance(member, property) else member
            if inspect.isfunction(method) and method.__name__ != "__init__":
                found += [(method.__name__ != "forward", span) for span in _assignments(method, name)]
    return min(found, key=lambda item: item[0])[1] if found else None


def _assignments(method: Callable[..., Any], name: str) -> Iterator[Span]:
    path = inspect.unwrap(method).__code__.co_filename
    if not is_user_code(path):
        return
    try:
        lines, first = inspect.getsourcelines(method)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return  # Typed at a prompt, or generated.
    arguments = inspect.unwrap(method).__code__.co_varnames
    margin = len(lines[0]) - len(lines[0].lstrip())
    written = [place for place in written_places(tree) if _is_attribute(place, arguments[:1], name)]
    for place in (*written, *(node for node in ast.walk(tree) if _registers(node, name))):
        start, end = columns_of(place, lines[place.lineno - 1], margin)
        line = first + place.lineno - 1
        yield Span(path, line, start, end, function=method.__name__, origin="source")


def _registers(call: ast.AST, name: str) -> TypeGuard[ast.Call]:
    """Return whether a call is `self.register_buffer(name, ...)` or of its kind."""
    match call:
        case ast.Call(func=ast.Attribute(attr=method), args=[ast.Constant(value=registered), *_]):
            return method.startswith(("register_", "add_module")) and bool(registered == name)
    return False


def _is_attribute(place: ast.expr, self_names: tuple[str, ...], name: str) -> bool:
    match place:
        case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
            return owner in self_names and attribute == name
    return False
