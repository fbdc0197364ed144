"""Detect Python side effects of `forward`, which are not part of the program."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any, Literal

import torch
from torch import nn

from fakexport._torch.patching import Patches, in_force, original_of, outside_of_patches
from fakexport._torch.tracing.watched_calls import (
    backend_choices_watched,
    default_generators_watched,
    texts_watched,
)
from fakexport.exporting.program import is_user_code
from fakexport.models.sources import patched_forward
from fakexport.rules.diagnostics import Span, function_of, is_only_told, written_places

from .call_site import user_frame
from .failure import span_at
from .held_values import HeldValues, is_same
from .kept_masks import masks_watched
from .left_fakes import containers_in
from .python_state import PythonState

_Place = tuple[ModuleType, str]

EffectKind = Literal[
    "print",
    "random",
    "state",
    "backend",
    "attribute",
    "variable",
    "text",
    "unseen",
    "padding",
    "mask",
    "grad_mode",
]

# Functions of torch that select kernels, and settings such as `torch.backends.cuda.matmul.allow_tf32 = True`.
_CHOOSING = ("sdp", "enable_", "set_", "use_", "allow_", "flags", "__set")
# Modules that set the state of a generator only to restore it.
_RESTORING = ("fakexport.emulation.history.", "torch._dynamo.utils", "torch._dynamo.convert_frame")
_FOR_PEOPLE = frozenset({"__repr__", "__str__", "extra_repr"})
_NO_DRAWS = frozenset({"seed", "getstate", "setstate", "get_state", "set_state"})


@dataclass(frozen=True)
class PythonEffect:
    """A side effect of `forward`.

    Args:
        kind: `print`: prints text; `random`: draws random numbers from Python or NumPy; `state`: sets a
            default of torch or the state of a generator, or reads the seed; `backend`: selects kernels or a
            precision; `attribute`: assigns or modifies an attribute of a module; `variable`: assigns or
            modifies a variable of a class or file, or an argument that is a list, dict or set; `text`:
            formats an unknown number or tensor; `unseen`: `forward` can only be traced in strict mode, which
            hides effects; `padding`: calls an `nn.TransformerEncoder` with a padding mask; `mask`: attention
            gets a causal mask that eager mode drops; `grad_mode`: computes something different in the other
            grad mode (`check_later_calls` adds it).
        what: The called function (`print`, `random.random`, `numpy.random.rand`, `torch.random.manual_seed`),
            the name of the attribute or variable, the text, or the error of the non-strict trace.
        span: The line of user code, if known.
        module_path: Path of the encoder, the attention module, or the module with the attribute. "" for other
            effects.
    """

    kind: EffectKind
    what: str
    span: Span | None
    module_path: str = ""


PythonEffects = dict[PythonEffect, None]
"""The effects that `watch_forward` has seen, each once, in order."""


@contextmanager
def watch_forward(module: nn.Module) -> Iterator[PythonEffects]:
    """Enter a context that watches calls of `module.forward` without changing their behavior.

    `print` and the functions of `random` and of `numpy.random` (if it is imported) are replaced during the
    call. Calls through names that the model imported (`from random import random`) are detected by changes in
    the generator's state, without a source line.

    Formatting an unknown value is not an effect if the text is only raised, printed or logged.

    Yields:
        The effects, in order. Effects are added while the context is active.
    """
    effects: PythonEffects = {}
    original: Callable[..., Any] = module.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        before = PythonState(module)
        given = _containers_of_arguments(original, args, kwargs)
        items = _items(given)
        own, is_grad_enabled = vars(module).get("forward"), torch.is_grad_enabled()
        with (
            _watched_builtins(effects),
            backend_choices_watched(lambda frame: _add_choice(effects, frame)),
            default_generators_watched(lambda method, frame: _add_state(effects, method, frame)),
            texts_watched(lambda text, frame: _add_text(effects, text, frame)),
            _padding_watched(module, effects),
            masks_watched(lambda layer, frame: _add_mask(effects, module, layer, frame)),
        ):
            result = original(*args, **kwargs)
        if torch.is_grad_enabled() != is_grad_enabled:
            effects[PythonEffect("state", "torch.set_grad_enabled", None)] = None
        if vars(module).get("forward") is not own:
            effects[PythonEffect("attribute", "forward", None)] = None
        for change in before.changes():
            effects[PythonEffect(change.kind, change.name, change.span, change.module_path)] = None
        for name, now in _items(given).items():
            if not is_same(items[name], now):
                effects[PythonEffect("variable", name, next(_places(original, name), None))] = None
        return result

    with patched_forward(module, forward):
        yield effects


def _add_choice(effects: PythonEffects, frame: FrameType | None) -> None:
    """Record a default or backend that the model sets. Internal calls of torch functions are ignored."""
    owner, name, span = _called(frame)
    if span is not None and name.startswith("set_default_"):
        effects[PythonEffect("state", f"{owner}.{name}", span)] = None
    elif span is not None and name.startswith(_CHOOSING):
        effects[PythonEffect("backend", owner if name.startswith("__") else name, span)] = None


def _add_state(effects: PythonEffects, method: str, frame: FrameType | None) -> None:
    owner, name, span = _called(frame)
    if span is not None:
        what = f"{owner}.{name}" if name else f"torch.Generator.{method}"
        effects[PythonEffect("state", what, span)] = None


def _called(frame: FrameType | None) -> tuple[str, str, Span | None]:
    """Return the module and name of the torch function that was called, and the line of the call.

    The line is None if user code did not make the call.
    """
    owner, name = "", ""
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        found = frame.f_globals.get("__name__", "")
        if found.startswith(_RESTORING):
            return owner, name, None
        if found.partition(".")[0] == "torch" and not found.startswith("torch._"):
            owner, name = found, frame.f_code.co_name
        frame = frame.f_back
    return owner, name, calling_span(frame)


def _add_mask(effects: PythonEffects, module: nn.Module, layer: nn.Module, frame: FrameType) -> None:
    for path, part in module.named_modules():
        if part is layer:
            effects[PythonEffect("mask", "attention_mask", calling_span(frame), path)] = None


def _add_text(effects: PythonEffects, text: str, frame: FrameType | None) -> None:
    span = calling_span(frame)
    if frame is None or span is None or frame.f_code.co_name in _FOR_PEOPLE or is_only_told(span):
        return
    if not any(known.kind == "text" and known.span == span for known in effects):
        effects[PythonEffect("text", text, span)] = None


@contextmanager
def _padding_watched(module: nn.Module, effects: PythonEffects) -> Iterator[None]:
    """Enter a context that records calls of encoders that compute differently in eager mode.

    With a padding mask, `nn.TransformerEncoder.forward` creates a nested tensor, unless it is being compiled
    or traced, or is in training mode.
    """

    def called(path: str, encoder: nn.TransformerEncoder, args: Any, kwargs: Any) -> None:
        given = {**dict(zip(("src", "mask", "src_key_padding_mask"), args, strict=False)), **kwargs}
        if given.get("src_key_padding_mask") is None or given.get("mask") is not None:
            return
        if encoder.use_nested_tensor and not encoder.training:
            span = calling_span(user_frame(sys._getframe(1)))
            effects[PythonEffect("padding", "src_key_padding_mask", span, path)] = None

    hooks = [
        encoder.register_forward_pre_hook(functools.partial(called, path), with_kwargs=True)
        for path, encoder in module.named_modules()
        if isinstance(encoder, nn.TransformerEncoder)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _watched_builtins(effects: PythonEffects) -> Iterator[None]:
    modules = [random, *filter(None, [sys.modules.get("numpy.random")])]
    states = [_state(module) for module in modules]
    called: set[str] = set()
    with Patches({place: _watched(place, effects, called) for place in _watched_places(*modules)}):
        yield
    for module, state in zip(modules, states, strict=True):
        seen = any(what.startswith(f"{module.__name__}.") for what in called)
        if not seen and _state(module) != state:
            effects[PythonEffect("random", module.__name__, None)] = None


# Cached, because each trace watches about a hundred functions.
@functools.cache
def _watched_places(*drawing: ModuleType) -> tuple[_Place, ...]:
    return (*((module, name) for module in drawing for name in _draws(module)), (builtins, "print"))


def _watched(place: _Place, effects: PythonEffects, called: set[str]) -> Callable[..., Any]:
    owner, name = place
    function = in_force(owner, name)
    what = name if owner is builtins else f"{owner.__name__}.{name}"
    kind: EffectKind = "print" if owner is builtins else "random"

    def watched(*args: Any, **kwargs: Any) -> Any:
        span = calling_span(outside_of_patches(sys._getframe(1)))
        called.add(what)
        if span is not None:  # None: torch itself made the call.
            effects[PythonEffect(kind, what, span)] = None
        return function(*args, **kwargs)

    return watched


def calling_span(frame: FrameType | None) -> Span | None:
    """Return the line of a call in user code, or None if torch or the standard library made the call."""
    if frame is None or not is_user_code(frame.f_code.co_filename):
        return None
    return span_at(frame.f_code, frame.f_lasti, frame.f_lineno)


def _draws(module: ModuleType) -> Iterator[str]:
    """Yield the names of a module's functions that draw from the module's own random generator."""
    for name in list(vars(module)):
        function = original_of(module, name)
        is_draw = type(getattr(function, "__self__", None)).__name__ in ("Random", "RandomState")
        if is_draw and callable(function) and not name.startswith("_") and name not in _NO_DRAWS:
            yield name


def _state(module: ModuleType) -> Any:
    """Return the state of a module's own random generator in a form that can be compared."""
    return module.getstate() if module is random else _without_arrays(module.get_state(legacy=False))


def _without_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _without_arrays(value) for name, value in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else state


def _containers_of_arguments(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, list[Any]]:
    parameters = inspect.signature(forward).parameters.values()
    names = [
        each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    rest = {each.name: args[len(names) :] for each in parameters if each.kind is each.VAR_POSITIONAL}
    given = {**dict(zip(names, args, strict=False)), **rest, **kwargs}
    return {name: list(containers_in(value)) for name, value in given.items()}


def _items(containers: Mapping[str, list[Any]]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(HeldValues().of(each, 1) for each in held) for name, held in containers.items()}


def _places(forward: Callable[..., Any], name: str) -> Iterator[Span]:
    code = getattr(inspect.unwrap(forward), "__code__", None)
    if code is None or not is_user_code(code.co_filename) or (function := function_of(code)) is None:
        return
    for place, span in written_places(code.co_filename, function):
        if isinstance(place, ast.Name) and place.id == name:
            yield span
