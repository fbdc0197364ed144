"""What `forward` does in Python besides computing: a program repeats none of it."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import random
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any, Literal

import torch
from torch import nn

from fakexport.capture.failure import span_at
from fakexport.diagnostics import Span
from fakexport.program import is_user_code

EffectKind = Literal["print", "random", "state", "attribute", "class"]

# What sets something that later operators of the same process depend on, and values with them.
_SETTERS = {
    torch: ("manual_seed", "seed", "set_rng_state", "set_default_dtype", "use_deterministic_algorithms"),
    torch.random: ("manual_seed", "seed", "set_rng_state", "fork_rng"),
    torch.cuda: ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all"),
}
_NO_DRAWS = frozenset({"seed", "getstate", "setstate", "get_state", "set_state"})
_OF_TORCH = frozenset(
    {"_parameters", "_buffers", "_modules", "training", "forward", "_flat_weights", "_flat_weight_refs"}
)

# Hooks themselves, and the flag of transformers' models that theirs are installed.
_OF_HOOKS = ("_hooks", "_hooks_with_kwargs", "_always_called", "_hooks_installed")


@dataclass(frozen=True)
class PythonEffect:
    """One thing that `forward` did besides computing.

    Args:
        kind: `print`; `random`: it drew from the generator of Python or NumPy; `state`: it set a seed or a
            default of torch; `attribute`: it assigned an attribute of a module, or changed a list, dict or
            set that is one; `class`: its code asks for the exact class of a tensor.
        what: `print`, `random.random`, `numpy.random.rand`, `torch.manual_seed`; the name of the attribute;
            the comparison.
        span: The user's line, where it is known.
        module_path: Path of the module whose attribute it is; "" for the other kinds.
    """

    kind: EffectKind
    what: str
    span: Span | None
    module_path: str = ""


@dataclass
class PythonEffects:
    """What was seen while `watch_forward` was entered, each effect once, in the order of appearance."""

    seen: dict[PythonEffect, None] = field(default_factory=dict)

    def add(self, effect: PythonEffect) -> None:
        self.seen.setdefault(effect)

    def __iter__(self) -> Iterator[PythonEffect]:
        return iter(self.seen)


@contextmanager
def watch_forward(module: nn.Module) -> Iterator[PythonEffects]:
    """Enter a context in which calls of `module.forward` are watched; they do what they did before.

    `print`, the functions of `random` and of `numpy.random` (if something has imported it), and those that
    set a seed or a default of torch are replaced while the call lasts. Draws through names that the model
    imported (`from random import random`) are seen by the generator's state, and have no place.

    Yields:
        The effects so far.
    """
    effects = PythonEffects()
    original: Callable[..., Any] = module.forward
    is_own = "forward" in vars(module)

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        before = _attributes(module)
        with _watched_builtins(effects):
            result = original(*args, **kwargs)
        for path, name, holder in _changed(module, before):
            effects.add(PythonEffect("attribute", name, _assignment(holder, name), path))
        return result

    module.forward = forward
    try:
        yield effects
    finally:
        if is_own:
            module.forward = original
        else:
            del module.forward


class _Watches(threading.local):
    """What this thread watches now: the effects of each watch, and the names of what was called in it."""

    def __init__(self) -> None:
        self.open: list[tuple[PythonEffects, set[str]]] = []


_watches = _Watches()


@contextmanager
def _watched_builtins(effects: PythonEffects) -> Iterator[None]:
    modules = [random, *filter(None, [sys.modules.get("numpy.random")])]
    states = [_state(module) for module in modules]
    kinds: dict[tuple[ModuleType, str], EffectKind] = {
        **{(module, name): "random" for module in modules for name in _draws(module)},
        **{(module, name): "state" for module, names in _SETTERS.items() for name in names},
        (builtins, "print"): "print",
    }
    functions = {(owner, name): getattr(owner, name) for owner, name in kinds}
    stand_ins = {place: _watched(functions[place], kind, _shown(*place)) for place, kind in kinds.items()}
    drawn: set[str] = set()
    _watches.open.append((effects, drawn))
    try:
        for (owner, name), stand_in in stand_ins.items():
            setattr(owner, name, stand_in)
        yield
    finally:
        for (owner, name), function in functions.items():
            setattr(owner, name, function)
        _watches.open.pop()
    for module, state in zip(modules, states, strict=True):
        seen = any(what.startswith(f"{module.__name__}.") for what in drawn)
        if not seen and _state(module) != state:
            effects.add(PythonEffect("random", module.__name__, None))


def _shown(owner: ModuleType, name: str) -> str:
    return name if owner is builtins else f"{owner.__name__}.{name}"


# There are a hundred, and each trace watches them all. Some are exchanged while devices are emulated.
@functools.lru_cache(maxsize=256)
def _watched(function: Callable[..., Any], kind: EffectKind, what: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if not _watches.open:
            return function(*args, **kwargs)
        span = calling_span(sys._getframe(1))
        for effects, called in _watches.open:
            called.add(what)
            if span is not None:  # None: torch itself, on its own account
                effects.add(PythonEffect(kind, what, span))
        return function(*args, **kwargs)

    return watched


def calling_span(frame: FrameType | None) -> Span | None:
    """Return the call's place in user code.

    None where code of torch or of the standard library made the call.
    """
    if frame is None or not is_user_code(frame.f_code.co_filename):
        return None
    return span_at(frame.f_code, frame.f_lasti, frame.f_lineno)


def _draws(module: ModuleType) -> Iterator[str]:
    """Return the names of a module's functions that draw from its own generator."""
    for name, function in list(vars(module).items()):
        owner = getattr(function, "__self__", None)
        is_draw = type(owner).__name__ in ("Random", "RandomState") and callable(function)
        if is_draw and not name.startswith("_") and name not in _NO_DRAWS:
            yield name


def _state(module: ModuleType) -> Any:
    """Return the state of a module's own generator, as something to compare."""
    return module.getstate() if module is random else _without_arrays(module.get_state(legacy=False))


def _without_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _without_arrays(value) for name, value in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state


def _attributes(root: nn.Module) -> dict[str, tuple[nn.Module, dict[str, Any]]]:
    """Return every module by its path, with its plain attributes and its modules.

    Of containers, what they hold now; of torch's own layers, not what these note down for themselves, as
    `nn.LSTM` does with its flat weights.
    """
    found = {}
    for path, module in root.named_modules():
        kept = {} if _is_layer_of_torch(module) else vars(module)
        plain = {name: _held(value) for name, value in kept.items() if _is_plain(name)}
        found[path] = (module, plain | module._modules)
    return found


def _is_layer_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith(("torch.nn.", "torch.ao.")) and type(module) is not nn.Module


def _is_plain(name: str) -> bool:
    return name not in _OF_TORCH and not name.endswith(_OF_HOOKS)


def _held(value: Any) -> Any:
    return tuple(value.items()) if type(value) is dict else tuple(value) if _is_sequence(value) else value


def _is_sequence(value: Any) -> bool:
    return type(value) in (list, tuple, set)


def _changed(
    root: nn.Module, before: dict[str, tuple[nn.Module, dict[str, Any]]]
) -> Iterator[tuple[str, str, nn.Module]]:
    """Return the path, name and module of each attribute that is not what it was.

    A module in the place of another one is an attribute of the module that has it; its own are new with it.
    """
    after = _attributes(root)
    for path, (module, new) in after.items():
        known, old = before.get(path, (None, {}))
        if module is not known:
            continue
        for name in dict.fromkeys((*old, *new)):
            is_same = _is_same(old.get(name, _ABSENT), new.get(name, _ABSENT))
            if not is_same and (name in old or not _is_only_cached(module, name)):
                yield path, name, module


_ABSENT = object()


def _is_only_cached(module: nn.Module, name: str) -> bool:
    """Return whether the class declares that a value is computed once and stays, and never assigns it."""
    declared = inspect.getattr_static(type(module), name, None)
    return isinstance(declared, functools.cached_property) and _assignment(module, name) is None


def _is_same(old: Any, new: Any) -> bool:
    """Return whether nothing was assigned: the same object, an equal number or text, a container of such."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, tuple):
        return len(old) == len(new) and all(map(_is_same, old, new))
    return isinstance(old, (bool, int, float, complex, str, bytes)) and bool(old == new)


def _assignment(module: nn.Module, name: str) -> Span | None:
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
    for node in ast.walk(tree):
        for place in _places(node):
            if _is_attribute(place, arguments[:1], name):
                start, end = source_columns(lines[place.lineno - 1], place, margin)
                line = first + place.lineno - 1
                yield Span(path, line, start, end, function=method.__name__, origin="source")


def source_columns(line: str, place: ast.expr, margin: int = 0) -> tuple[int, int | None]:
    """Return columns from 1, in characters.

    `ast` counts bytes of UTF-8 from 0, and after the indentation of what was parsed.
    """
    text = line[margin:].encode()
    start = margin + len(text[: place.col_offset].decode()) + 1
    if place.end_lineno != place.lineno:
        return start, None
    return start, margin + len(text[: place.end_col_offset].decode()) + 1


def _places(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that a statement or call may change: targets, and owners of a called method."""
    targets: list[ast.expr] = []
    match node:
        case ast.Assign():
            targets = node.targets
        case ast.AugAssign() | ast.AnnAssign():
            targets = [node.target]
        case ast.Call(func=ast.Attribute(value=owner)):
            targets = [owner]
    for target in targets:
        yield from (part for part in ast.walk(target) if isinstance(part, ast.expr))


def _is_attribute(place: ast.expr, self_names: tuple[str, ...], name: str) -> bool:
    match place:
        case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
            return owner in self_names and attribute == name
    return False
