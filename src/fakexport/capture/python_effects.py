"""What `forward` does in Python besides computing: a program repeats none of it."""

from __future__ import annotations

import builtins
import functools
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any, Literal

from torch import nn

from fakexport._torch.backend_choices import backend_choices_watched
from fakexport._torch.generator_methods import default_generators_watched
from fakexport._torch.patching import Patches, in_force, original_of, outside_of_patches
from fakexport._torch.unknown_texts import texts_watched
from fakexport.diagnostics import Span, is_only_told
from fakexport.program import is_user_code
from fakexport.sources import exchanged_forward

from .call_site import user_frame
from .changed_arguments import changed_arguments, contents_of_arguments
from .failure import span_at
from .module_attributes import assignment_of, attributes_of, changed_attributes
from .shared_variables import changed_variables, shared_variables

_Place = tuple[ModuleType, str]

EffectKind = Literal[
    "print", "random", "state", "backend", "attribute", "variable", "text", "unseen", "padding"
]

# Functions of torch that choose kernels, and settings such as `torch.backends.cuda.matmul.allow_tf32 = True`.
_CHOOSING = ("sdp", "enable_", "set_", "use_", "allow_", "flags", "__set")
# They put the state of generators back, as it was, on their own account.
_RESTORING = ("fakexport.history.", "torch._dynamo.utils", "torch._dynamo.convert_frame")
_FOR_PEOPLE = frozenset({"__repr__", "__str__", "extra_repr"})
_NO_DRAWS = frozenset({"seed", "getstate", "setstate", "get_state", "set_state"})


@dataclass(frozen=True)
class PythonEffect:
    """One thing that `forward` did besides computing.

    Args:
        kind: `print`; `random`: it drew from the generator of Python or NumPy; `state`: it set a default of
            torch or the state of a generator, or asked for the seed; `backend`: it chose kernels or a
            precision; `attribute`: it assigned an attribute of a module, or changed what one holds;
            `variable`: the same of a class, a file, or an argument that is a list, a dict or a set; `text`:
            it made text of a number or a tensor that the trace does not know; `unseen`: it runs in strict
            mode alone, which does not show what it does; `padding`: it called an `nn.TransformerEncoder` with
            a padding mask.
        what: `print`, `random.random`, `numpy.random.rand`, `torch.random.manual_seed`; the name of
            the attribute or variable; the text; the error without strict mode.
        span: The user's line, where it is known.
        module_path: Path of the encoder, or of the module whose attribute it is; "" for the other kinds.
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

    `print` and the functions of `random` and of `numpy.random` (if something has imported it) are replaced
    while the call lasts. Draws through names that the model imported (`from random import random`) are seen
    by the generator's state, and have no place.

    Texts of unknown values that are only raised, printed or logged are not effects.

    Yields:
        The effects so far.
    """
    effects = PythonEffects()
    original: Callable[..., Any] = module.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        before, shared = attributes_of(module), shared_variables(module)
        given = contents_of_arguments(original, args, kwargs)
        with (
            _watched_builtins(effects),
            backend_choices_watched(lambda frame: _add_choice(effects, frame)),
            default_generators_watched(lambda method, frame: _add_state(effects, method, frame)),
            texts_watched(lambda text, frame: _add_text(effects, text, frame)),
            _padding_watched(module, effects),
        ):
            result = original(*args, **kwargs)
        for path, name, holder in changed_attributes(module, before):
            effects.add(PythonEffect("attribute", name, assignment_of(holder, name), path))
        for name, span in (*changed_variables(shared), *changed_arguments(original, given)):
            effects.add(PythonEffect("variable", name, span))
        return result

    with exchanged_forward(module, forward):
        yield effects


def _add_choice(effects: PythonEffects, frame: FrameType | None) -> None:
    """Note what the model called, unless that chooses on its own account."""
    owner, name, span = _called(frame)
    if span is not None and name.startswith("set_default_"):
        effects.add(PythonEffect("state", f"{owner}.{name}", span))
    elif span is not None and name.startswith(_CHOOSING):
        effects.add(PythonEffect("backend", owner if name.startswith("__") else name, span))


def _add_state(effects: PythonEffects, method: str, frame: FrameType | None) -> None:
    owner, name, span = _called(frame)
    if span is not None:
        effects.add(PythonEffect("state", f"{owner}.{name}" if name else f"torch.Generator.{method}", span))


def _called(frame: FrameType | None) -> tuple[str, str, Span | None]:
    """Return what user code called: module and name of the outermost function of torch, and the place.

    Without a place if something in between acts on its own account.
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


def _add_text(effects: PythonEffects, text: str, frame: FrameType | None) -> None:
    span = calling_span(frame)
    if frame is None or span is None or frame.f_code.co_name in _FOR_PEOPLE or is_only_told(span):
        return
    if not any(known.kind == "text" and known.span == span for known in effects):
        effects.add(PythonEffect("text", text, span))


@contextmanager
def _padding_watched(module: nn.Module, effects: PythonEffects) -> Iterator[None]:
    """Enter a context in which calls of encoders are noted that take another path in eager mode.

    With a padding mask, `nn.TransformerEncoder.forward` makes a nested tensor, unless it is compiled, traced
    or trained.
    """

    def called(path: str, encoder: nn.TransformerEncoder, args: Any, kwargs: Any) -> None:
        given = {**dict(zip(("src", "mask", "src_key_padding_mask"), args, strict=False)), **kwargs}
        if given.get("src_key_padding_mask") is None or given.get("mask") is not None:
            return
        if encoder.use_nested_tensor and not encoder.training:
            span = calling_span(user_frame(sys._getframe(1)))
            effects.add(PythonEffect("padding", "src_key_padding_mask", span, path))

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
            effects.add(PythonEffect("random", module.__name__, None))


# There are a hundred, and each trace watches them all.
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
    for name in list(vars(module)):
        function = original_of(module, name)
        is_draw = type(getattr(function, "__self__", None)).__name__ in ("Random", "RandomState")
        if is_draw and callable(function) and not name.startswith("_") and name not in _NO_DRAWS:
            yield name


def _state(module: ModuleType) -> Any:
    """Return the state of a module's own generator, as something to compare."""
    return module.getstate() if module is random else _without_arrays(module.get_state(legacy=False))


def _without_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _without_arrays(value) for name, value in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else state
