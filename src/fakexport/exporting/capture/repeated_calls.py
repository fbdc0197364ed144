"""Detect whether state that one call of `forward` leaves behind changes what the next call computes.

A program always repeats the first call. Therefore, `forward` runs several times in a row in one trace, and
each call must compute the same function of its inputs, parameters and buffers. Calls are equal even if one
computes a value from parameters and the next reads this value from a cache.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode, resolve_name

from fakexport._torch.pytree import tree_flatten, tree_leaves, tree_map
from fakexport._torch.tracing.symbolic_numbers import expression_of, hint_of
from fakexport.emulation.fake import is_fake
from fakexport.exporting.program import content_of, is_model_code, plain_repr, written_state
from fakexport.models.sources import patched_forward
from fakexport.rules.diagnostics import Span

from .call_site import user_frame
from .failure import span_at
from .left_fakes import ModelState
from .lost_writes import LostWriteError
from .plain_forward import plain
from .python_effects import PythonEffect, PythonEffects

Place = tuple[CodeType, int, int]

CALLS = 3
_STATE_IN_A_BUFFER = (
    "register the state as a buffer and write into it: `self.steps += 1`; or take the state as an input and "
    "return it"
)
_FROM_OUTSIDE = "take what changes from call to call, such as a time or a counter, as an input of `forward`"

_UNBACKED = re.compile(r"\b(u|zuf)(\d+)\b")  # `u` is an integer, `zuf` is a float.
_PARTS = re.compile(r"\w+|\S")
_WRITING = re.compile(r"(?<!_)_$|__set(item)?__$")
_CONVERSIONS = re.compile("to|type|type_as|contiguous|float|double|half|bfloat16|cpu|cuda")
_DRAWS = re.compile(
    "(rand|randn|randint|randperm)(_like)?|normal|multinomial|bernoulli|poisson|gumbel_softmax|rrelu|"
    "(alpha_|feature_|feature_alpha_)?dropout[123]?d?_?|fractional_max_pool[23]d|scaled_dot_product_attention|"
    "(uniform|normal|exponential|random|bernoulli|cauchy|geometric|log_normal)_"
)
_OF_A_CALL = frozenset({"input", "draw"})


@dataclass(frozen=True)
class _Value:
    """A description of how a tensor was computed.

    Args:
        text: The computation as text. Texts are equal if the same functions were applied to the same roots.
        roots: The origins of the data: `input`, `draw` (random numbers), or the name of a parameter or
            buffer.
    """

    text: str
    roots: frozenset[str]


@dataclass
class RepeatedCalls:
    """The results of each call of `forward`, as text.

    Args:
        results: The results of each call.
        steps: For each call, the result of each torch function, and the line of user code that called the
            function.
        are_complete: Whether all calls returned.
    """

    results: list[str] = field(default_factory=list)
    steps: list[list[tuple[str, Place | None]]] = field(default_factory=list)
    are_complete: bool = False

    @property
    def differ(self) -> bool:
        """Whether a later call raised an error or returned something different from the first call."""
        return not self.are_complete or len(set(self.results)) > 1

    @property
    def first_difference(self) -> Span | None:
        """The line of user code at which a later call first computes something different, or None."""
        first, later = (*self.steps, [], [])[:2]
        for (text, _), (other, place) in zip(first, later, strict=False):
            if text != other and place is not None:
                return span_at(*place)
        return None


@contextmanager
def calls_repeated(
    module: nn.Module,
    written: frozenset[str],
    times: int = CALLS,
    later: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[RepeatedCalls]:
    """Enter a context in which `module.forward` runs several times in each call.

    Args:
        module: The module. One call changes its state as `times` calls would.
        written: Names of the parameters and buffers that `forward` writes.
        times: Number of runs of `forward` per call.
        later: The context of all runs but the first.
    """
    original: Callable[..., Any] = module.forward
    calls = RepeatedCalls()

    def forward(*args: Any, **kwargs: Any) -> Any:
        calls.results.clear()
        calls.steps.clear()
        calls.are_complete = False
        values = _Values(module, written)
        before = _layouts((args, kwargs))
        call = original
        for run in range(times):
            own = vars(module).get("forward")
            # Each call gets its own containers, because `forward` may modify them.
            given, named = tree_map(lambda leaf: leaf, (args, kwargs))
            values.begin((given, named))
            calls.steps.append(values.steps)
            with later() if run else nullcontext(), values:
                result = call(*given, **named)
            if vars(module).get("forward") is not own:  # The model replaces its own `forward`.
                call = module.forward
            calls.results.append(values.described((plain(result), args, kwargs)))
            if _layouts((args, kwargs)) != before:
                break  # `x.t_()`: the next call would get a different input.
        calls.are_complete = True
        return result

    forward.__wrapped__ = original  # type: ignore[attr-defined]
    with patched_forward(module, forward):
        yield calls


class _Values(TorchFunctionMode):
    """Describe the values of one call as text. The same operators on equal values have equal texts."""

    def __init__(self, module: nn.Module, written: frozenset[str]) -> None:
        super().__init__()
        self._module, self._written = module, written
        self._held: dict[int, str] = {}
        self._known: dict[int, _Value] = {}
        self._kept: list[torch.Tensor] = []  # Kept alive, so that the id of a tensor is not reused.
        self._names = [name for name, _ in self._state()]
        self._first_names: dict[int, str] = {}
        self._call = 0
        self._unseen = 0
        self._drawn: Counter[str] = Counter()
        self._symbols: dict[str, int] = {}
        self.steps: list[tuple[str, Place | None]] = []

    def begin(self, inputs: Any) -> None:
        """Start the next call. Values that earlier calls computed from their inputs get new texts."""
        self._call += 1
        self._unseen = 0
        self._drawn = Counter()
        self._symbols = {}
        self.steps = []
        lost = _OF_A_CALL | self._written
        for key, value in self._known.items():
            if value.roots & lost:
                self._known[key] = _Value(f"left by call {self._call - 1}: {value.text}", value.roots)
        # Reset tensors that existed before the calls to their first text. `lost_writes` reports writes.
        self._known |= {key: _Value(text, frozenset()) for key, text in self._held.items()}
        for name, tensor in self._state():
            if isinstance(tensor, nn.Parameter):  # Also after `forward` moves it to a different name.
                name = self._first_names.setdefault(id(tensor), name)
            self._set(tensor, _Value(name, frozenset({name})))
        for number, leaf in enumerate(tree_leaves(inputs)):
            if isinstance(leaf, torch.Tensor):
                self._set(leaf, _Value(f"input {number}", frozenset({"input"})))

    def described(self, results: Any) -> str:
        """Describe the results of a call, and what it wrote into its inputs and the module."""
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
        if torch.compiler.is_dynamo_compiling():  # A branch of `torch.cond`, which is handled as a whole.
            return result
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        name = getattr(func, "__name__", "")
        is_writing = _WRITING.search(name) is not None and isinstance(next(iter(args), None), torch.Tensor)
        if made or is_writing:
            value = self._computed(func, name, args, kwargs)
            self.steps.append((value.text, _place(sys._getframe(1))))
            if name == "copy_" and isinstance(args[1], torch.Tensor):
                value = self._known[id(args[1])]
            elif _CONVERSIONS.fullmatch(name) and _layouts(made) == _layouts(args[:1]):
                value = self._known[id(args[0])]  # Otherwise, `cache = cache.to(device)` would differ.
            for place, tensor in enumerate(made):
                self._set(tensor, _Value(f"{value.text}[{place}]" if place else value.text, value.roots))
            if is_writing:
                self._set(args[0], value)
        return result

    def _computed(self, func: Any, name: str, args: Any, kwargs: Any) -> _Value:
        roots: set[str] = set()
        text = f"{resolve_name(func) or name or plain_repr(func)} {self._shown((args, kwargs), roots)}"
        if _DRAWS.fullmatch(name):
            self._drawn[text] += 1  # Two draws within one call are two values.
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
            # Use the example's size, because a size may be symbolic in one call and a number in the next.
            return plain_repr(hint_of(value))
        return _digest(value) if hasattr(value, "tobytes") else self._plain(plain_repr(value))

    def _unseen_text(self, tensor: torch.Tensor) -> str:
        """Return an identifier for a tensor whose creation was not observed."""
        if not is_fake(tensor):
            return content_of(tensor)
        self._unseen += 1
        return f"unseen {self._unseen}"

    def _plain(self, text: str) -> str:
        """Number unbacked symbols by first use in the call, because their names differ between calls.

        torch sorts the terms of a sum by symbol name, so the terms are sorted again.
        """
        for kind, number in sorted(set(_UNBACKED.findall(text)), key=lambda found: (found[0], int(found[1]))):
            self._symbols.setdefault(kind + number, len(self._symbols))
        renamed = _UNBACKED.sub(lambda found: f"unbacked{self._symbols[found[0]]}", text)
        return text if renamed == text else " ".join(sorted(_PARTS.findall(renamed)))


def _layouts(inputs: Any) -> list[tuple[Any, ...]]:
    """Return the properties of inputs, other than their values, that `forward` may change."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    return [(t.requires_grad, t.layout, t.dtype, t.device, *map(_expression, _sizes(t))) for t in tensors]


def _sizes(tensor: torch.Tensor) -> tuple[Any, ...]:
    is_strided = tensor.layout is torch.strided
    return (*tensor.shape, *((*tensor.stride(), tensor.storage_offset()) if is_strided else ()))


def _expression(size: int | torch.SymInt) -> Any:
    """Return a value that can be compared without a guard. Guards on unbacked sizes raise an error."""
    return expression_of(size) if isinstance(size, torch.SymInt) else size


def _place(frame: FrameType | None) -> Place | None:
    frame = user_frame(frame)
    return None if frame is None else (frame.f_code, frame.f_lasti, frame.f_lineno)


def _digest(array: Any) -> str:
    """Return a digest that identifies the dtype, shape and content of a NumPy array or number."""
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def _is_of_people(module: nn.Module) -> bool:
    """Return whether `forward` or a hook of any submodule is defined outside of installed packages."""
    functions = (
        inspect.unwrap(function)
        for part in module.modules()
        for function in (
            type(part).forward,
            *part._forward_pre_hooks.values(),
            *part._forward_hooks.values(),
        )
    )
    return any(is_model_code(f.__code__.co_filename) for f in functions if inspect.isfunction(f))


def check_later_calls(
    program: ExportedProgram,
    module: nn.Module,
    effects: PythonEffects,
    state: ModelState,
    trace: Callable[[], Exception | None],
) -> None:
    """Compare what later calls of `forward` compute with the first call, also in the other grad mode.

    Programs usually run without gradients, but a trace has them. If only the grad mode makes a difference,
    the effect `grad_mode` is added to `effects`.

    Args:
        program: The traced program.
        module: The module. Its changed state is restored.
        effects: Side effects of `forward`. If none of them changes state, the model is traced again only if
            it contains user code. The models of libraries are tested with each library version instead.
        state: The state of the model before the trace.
        trace: Function that traces the module and returns the error that it raised, or None.

    Raises:
        LostWriteError: `forward` changes state that affects the results of its next call.
    """
    changes = [effect for effect in effects if effect.kind in ("attribute", "variable")]
    is_told = any(effect.kind in ("random", "text", "unseen") for effect in effects)
    if not changes and (is_told or not _is_of_people(module)):
        return

    def called_again(later: Callable[[], AbstractContextManager[Any]]) -> tuple[RepeatedCalls, str, Any]:
        state.put_back()
        times = CALLS if changes else 2
        with (
            calls_repeated(module, written_state(program), times, later) as calls,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # The first trace has already warned.
            error = trace()
        state.put_back()
        raised = "" if error is None else f"{type(error).__name__}: {error}"
        return calls, "computes something different" if calls.are_complete else f"raises {raised}", error

    is_grad_enabled = torch.is_grad_enabled()
    in_other_mode, what, _ = called_again(lambda: _grad_mode(not is_grad_enabled))
    if not in_other_mode.differ:
        return
    calls, later, error = called_again(nullcontext)
    if not calls.differ:
        effects[PythonEffect("grad_mode", what, in_other_mode.first_difference)] = None
    elif changes:
        names = ", ".join(f"{effect.module_path}.{effect.what}".lstrip(".") for effect in changes[:3])
        text = f"forward changes {names}, and its next call {later}, but the program repeats the first call"
        raise LostWriteError(text, changes[0].span or calls.first_difference, _STATE_IN_A_BUFFER) from error
    else:
        text = f"calling forward again {later}, although no attribute of the model appears to change"
        raise LostWriteError(
            text, calls.first_difference, _FROM_OUTSIDE, "differs in the next call"
        ) from error


@contextmanager
def _grad_mode(is_enabled: bool) -> Iterator[None]:
    """Enter a grad mode, but without the fused kernels of `nn.TransformerEncoder` for inference."""
    has_fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.set_grad_enabled(is_enabled):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(has_fast_path)
