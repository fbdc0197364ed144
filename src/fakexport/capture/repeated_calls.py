"""Whether a second call of `forward` would compute something else, because of what the first one left behind.

A program repeats the first call. So `forward` is traced several times in a row, and each call must return the
same function of its inputs, parameters and buffers. A value that one call computes from parameters alone and
the next one reads from a cache is the same function.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode, resolve_name

from fakexport._torch.pytree import tree_flatten, tree_leaves, tree_map
from fakexport._torch.symbolic_numbers import hint_of
from fakexport.diagnostics import Span
from fakexport.fake import is_fake
from fakexport.program import content_of, is_model_code, plain_repr, written_state
from fakexport.sources import exchanged_forward

from .call_site import user_frame
from .failure import span_at
from .left_fakes import ModelState
from .lost_writes import WriteLost
from .plain_forward import plain
from .python_effects import PythonEffect

Place = tuple[CodeType, int, int]

CALLS = 3
_STATE_IN_A_BUFFER = (
    "register it as a buffer and write into that: `self.steps += 1`; or take it as an input and return it"
)

_UNBACKED = re.compile(r"\b(u|zuf)(\d+)\b")  # An integer, and a float.
_PARTS = re.compile(r"\w+|\S")
_WRITING = re.compile(r"(?<!_)_$|__set(item)?__$")
_DRAWS = re.compile(
    "(rand|randn|randint|randperm)(_like)?|normal|multinomial|bernoulli|poisson|gumbel_softmax|rrelu|"
    "(alpha_|feature_|feature_alpha_)?dropout[123]?d?_?|fractional_max_pool[23]d|scaled_dot_product_attention|"
    "(uniform|normal|exponential|random|bernoulli|cauchy|geometric|log_normal)_"
)
_OF_A_CALL = frozenset({"input", "draw"})


@dataclass(frozen=True)
class _Value:
    """What a tensor is.

    Args:
        text: Equal for equal functions of equal roots.
        roots: What it was computed from: `input`, `draw`, names of parameters and buffers.
    """

    text: str
    roots: frozenset[str]


@dataclass
class RepeatedCalls:
    """What each call of `forward` returned, as text.

    Args:
        results: By call.
        steps: By call: what each function of torch computed, and where user code called it.
        are_complete: Whether all calls returned.
    """

    results: list[str] = field(default_factory=list)
    steps: list[list[tuple[str, Place | None]]] = field(default_factory=list)
    are_complete: bool = False

    @property
    def differ(self) -> bool:
        """Whether a later call returned something else than the first one, or raised."""
        return not self.are_complete or len(set(self.results)) > 1

    @property
    def first_difference(self) -> Span | None:
        """The line that computes something else first in a later call."""
        first, later = (*self.steps, [], [])[:2]
        for (text, _), (other, place) in zip(first, later, strict=False):
            if text != other and place is not None:
                return span_at(*place)
        return None


@contextmanager
def calls_repeated(module: nn.Module, written: frozenset[str], times: int = CALLS) -> Iterator[RepeatedCalls]:
    """Enter a context in which `module.forward` runs several times in each call.

    Args:
        module: Its state changes as in so many calls.
        written: Names of the parameters and buffers that `forward` writes to.
        times: How often it runs.
    """
    original: Callable[..., Any] = module.forward
    calls = RepeatedCalls()

    def forward(*args: Any, **kwargs: Any) -> Any:
        calls.results.clear()
        calls.steps.clear()
        calls.are_complete = False
        values = _Values(module, written)
        before = _layouts((args, kwargs))
        for _ in range(times):
            # Each call gets containers of its own: `forward` may change them.
            given, named = tree_map(lambda leaf: leaf, (args, kwargs))
            values.begin((given, named))
            calls.steps.append(values.steps)
            with values:
                result = original(*given, **named)
            calls.results.append(values.described((plain(result), args, kwargs)))
            if _layouts((args, kwargs)) != before:
                break  # `x.t_()`: the next call would be given another input.
        calls.are_complete = True
        return result

    forward.__wrapped__ = original  # type: ignore[attr-defined]
    with exchanged_forward(module, forward):
        yield calls


class _Values(TorchFunctionMode):
    """Numbers the values of one call: equal operators of equal values have equal texts."""

    def __init__(self, module: nn.Module, written: frozenset[str]) -> None:
        super().__init__()
        self._module, self._written = module, written
        self._held: dict[int, str] = {}
        self._known: dict[int, _Value] = {}
        self._kept: list[torch.Tensor] = []  # So that no number is that of another tensor.
        self._names = [name for name, _ in self._state()]
        self._call = 0
        self._unseen = 0
        self._drawn: Counter[str] = Counter()
        self._symbols: dict[str, int] = {}
        self.steps: list[tuple[str, Place | None]] = []

    def begin(self, inputs: Any) -> None:
        """Begin a call: what an earlier one computed from its inputs is something else from now on."""
        self._call += 1
        self._unseen = 0
        self._drawn = Counter()
        self._symbols = {}
        self.steps = []
        lost = _OF_A_CALL | self._written
        for key, value in self._known.items():
            if value.roots & lost:
                self._known[key] = _Value(f"left by call {self._call - 1}: {value.text}", value.roots)
        # What was there before holds what the program keeps of it; of the rest, `lost_writes` tells.
        self._known |= {key: _Value(text, frozenset()) for key, text in self._held.items()}
        for name, tensor in self._state():
            self._set(tensor, _Value(name, frozenset({name})))
        for number, leaf in enumerate(tree_leaves(inputs)):
            if isinstance(leaf, torch.Tensor):
                self._set(leaf, _Value(f"input {number}", frozenset({"input"})))

    def described(self, results: Any) -> str:
        """Return what a call returned, and what it wrote into its inputs and the module."""
        leaves, structure = tree_flatten(results)
        state = dict(self._state())
        shown = [self._shown(leaf, set()) for leaf in leaves]
        shown += [f"{name} = {self._shown(state.get(name), set())}" for name in self._names]
        return "\n".join((plain_repr(structure), *shown))

    def _state(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._module.named_parameters()
        yield from self._module.named_buffers()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if torch.compiler.is_dynamo_compiling():  # A branch of `torch.cond`, which is seen as a whole.
            return result
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        name = getattr(func, "__name__", "")
        is_writing = _WRITING.search(name) is not None and isinstance(next(iter(args), None), torch.Tensor)
        if made or is_writing:
            value = self._computed(func, name, args, kwargs)
            self.steps.append((value.text, _place(sys._getframe(1))))
            if name == "copy_" and isinstance(args[1], torch.Tensor):
                value = self._known[id(args[1])]
            for place, tensor in enumerate(made):
                self._set(tensor, _Value(f"{value.text}[{place}]" if place else value.text, value.roots))
            if is_writing:
                self._set(args[0], value)
        return result

    def _computed(self, func: Any, name: str, args: Any, kwargs: Any) -> _Value:
        roots: set[str] = set()
        text = f"{resolve_name(func) or name or plain_repr(func)} {self._shown((args, kwargs), roots)}"
        if _DRAWS.fullmatch(name):
            self._drawn[text] += 1  # Two draws of one call are two values.
            text = f"{text} draw {self._drawn[text]}"
            roots.add("draw")
        return _Value(hashlib.sha256(text.encode()).hexdigest(), frozenset(roots))

    def _set(self, tensor: torch.Tensor, value: _Value) -> None:
        self._known[id(tensor)] = value
        self._kept.append(tensor)

    def _shown(self, value: Any, roots: set[str]) -> str:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._known:
                self._set(value, _Value(self._unseen_text(value), frozenset()))
                self._held[id(value)] = self._known[id(value)].text
            known = self._known[id(value)]
            roots |= known.roots
            return known.text
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self._shown(item, roots) for item in value)}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key}: {self._shown(item, roots)}' for key, item in value.items())}}}"
        if isinstance(value, slice):
            return f"slice({self._shown([value.start, value.stop, value.step], roots)})"
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and hint_of(value) is not None:
            # Of the example: a call may find out what a size is, and the next one then has the number.
            return plain_repr(hint_of(value))
        return _digest(value) if hasattr(value, "tobytes") else self._plain(plain_repr(value))

    def _unseen_text(self, tensor: torch.Tensor) -> str:
        """Return what tells a tensor that was made before, or past the functions of torch."""
        if not is_fake(tensor):
            return content_of(tensor)
        self._unseen += 1
        return f"unseen {self._unseen}"

    def _plain(self, text: str) -> str:
        """Return a text that may have unbacked symbols, of which each call may have its own: by the order in
        which the call uses them. A sum is sorted by their names, so its parts are sorted again.
        """
        for kind, number in sorted(set(_UNBACKED.findall(text)), key=lambda found: (found[0], int(found[1]))):
            self._symbols.setdefault(kind + number, len(self._symbols))
        renamed = _UNBACKED.sub(lambda found: f"unbacked{self._symbols[found[0]]}", text)
        return text if renamed == text else " ".join(sorted(_PARTS.findall(renamed)))


def _layouts(inputs: Any) -> list[tuple[Any, ...]]:
    """Return what `forward` may change of its inputs besides their values."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    return [(t.shape, t.requires_grad, t.layout, t.dtype, *_strides(t)) for t in tensors]


def _strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.stride(), tensor.storage_offset()) if tensor.layout is torch.strided else ()


def _place(frame: FrameType | None) -> Place | None:
    frame = user_frame(frame)
    return None if frame is None else (frame.f_code, frame.f_lasti, frame.f_lineno)


def _digest(array: Any) -> str:
    """Return what tells an array of NumPy from others, or a number of it."""
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def _is_of_people(module: nn.Module) -> bool:
    """Return whether the `forward` of a part of the model is in a file of none of the installed packages."""
    functions = (inspect.unwrap(type(part).forward) for part in module.modules())
    return any(is_model_code(f.__code__.co_filename) for f in functions if inspect.isfunction(f))


def refuse_other_later_calls(
    program: ExportedProgram,
    module: nn.Module,
    effects: Sequence[PythonEffect],
    state: ModelState,
    trace: Callable[[], Exception | None],
) -> None:
    """Raise `WriteLost` if `forward` changes something that changes what its next call computes.

    Args:
        program: As traced.
        module: Its state is put back where it had changed.
        effects: What `forward` did besides computing. If no change of state is among them, only the code of
            people is traced again: that of libraries is tested with each version.
        state: The state of the model before the trace.
        trace: Traces the module, and returns what that raised.
    """
    changes = [effect for effect in effects if effect.kind in ("attribute", "variable")]
    is_told = any(effect.kind in ("random", "text", "unseen") for effect in effects)
    if not changes and (is_told or not _is_of_people(module)):
        return
    state.put_back()
    times = CALLS if changes else 2
    with (
        calls_repeated(module, written_state(program), times) as calls,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # The first trace warned.
        error = trace()
    state.put_back()
    if not calls.differ:
        return
    what = "computes something else" if calls.are_complete else f"raises {type(error).__name__}: {error}"
    if not changes:
        text = f"forward's next call {what}, and no attribute of the model tells why"
        raise WriteLost(text, calls.first_difference) from error
    names = ", ".join(f"{effect.module_path}.{effect.what}".lstrip(".") for effect in changes[:3])
    text = f"forward changes {names}, and its next call {what}: the program repeats the first"
    raise WriteLost(text, changes[0].span or calls.first_difference, _STATE_IN_A_BUFFER) from error
