"""How many placeholder tokens an image or a sound becomes: the model is run up to its language model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from fakexport._torch.fake_tensors import unknown_values
from fakexport.sources.component_calls import ListedTensors, restored_attributes
from fakexport.sources.component_places import FORWARD, Place, places
from fakexport.sources.exporter_patches import exporter_patches
from fakexport.sources.input_request import InputRequest, Underivable
from fakexport.sources.source_error import first_line

_OWN_STATE: Mapping[str, torch.Tensor] = MappingProxyType({})

# The method with which most models look for the tokens that features are put in the place of.
_COMPARING = "get_placeholder_mask"
_FEATURES = {"image_features": "vision", "audio_features": "audio"}


class _LanguageReached(BaseException):
    """Ends a run where the language model starts. No handler of a model catches it."""


@dataclass
class EncoderRun:
    """What happened before the language model.

    Args:
        placed: How many features the model compared with its placeholder tokens, by role.
        features: What the model's own functions returned for an image or a sound, by role.
        connected: What the modules returned that project features, by path.
        encoded: What the encoders returned, by role.
        written: How many embeddings or ids the model wrote over those of the text, each time.
        error: What the model raised, if it did.
        is_complete: Whether the language model was reached, or the whole model ran.
    """

    placed: dict[str, int] = field(default_factory=dict)
    features: dict[str, Any] = field(default_factory=dict)
    connected: dict[str, Any] = field(default_factory=dict)
    encoded: dict[str, Any] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)
    error: Exception | None = None
    is_complete: bool = False

    @property
    def reason(self) -> str:
        """Why the run was not complete."""
        return "" if self.error is None else first_line(self.error)


def run_encoders(
    request: InputRequest, inputs: Mapping[str, Any], *, state: Mapping[str, torch.Tensor] = _OWN_STATE
) -> EncoderRun:
    """Run the model on inputs until it calls its language model.

    Args:
        inputs: Keyword inputs. Fake ones are made in the caller's recording: a model reads their values.
        state: Parameters and buffers to run with. Default: the model's.
    """
    module, run = request.module, EncoderRun()
    found = places(module)
    with ExitStack() as stack:
        stack.enter_context(restored_attributes(module))
        for place in found:
            if place.method != FORWARD:
                stack.enter_context(_recorded(module, place, run.features, place.role))
            elif place.role == "connector":
                stack.enter_context(_recorded(module, place, run.connected, place.path))
            elif place.role in ("vision", "audio"):
                stack.enter_context(_recorded(module, place, run.encoded, place.role))
        for part in module.modules():
            if callable(getattr(type(part), _COMPARING, None)):
                stack.enter_context(_counted(part, run.placed))
        for language in _language_models(module, found):
            stack.callback(language.register_forward_pre_hook(_stop, with_kwargs=True).remove)
        stack.enter_context(torch.no_grad())
        stack.enter_context(ListedTensors())
        stack.enter_context(_Written(run.written))
        try:
            functional_call(module, dict(state), (), dict(inputs))
            run.is_complete = True
        except _LanguageReached:
            run.is_complete = True
        except Exception as error:  # whatever a model raises that needs another shape, or more inputs
            run.error = error
    return run


def runs_without_values(request: InputRequest, inputs: Mapping[str, Any]) -> bool:
    """Return whether the model gets to its language model where values are as unknown as in a trace."""
    module = request.module
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with exporter_patches(), unknown_values({f".{n}": t for n, t in tensors.items()} | state) as unknown:
        traced = {name: unknown.pop(f".{name}") for name in tensors}
        return run_encoders(request, {**inputs, **traced}, state=unknown).is_complete


def features_per_row(request: InputRequest, run: EncoderRun, role: str) -> int:
    """Return how many tokens' places the features of one row of a batch take.

    Raises:
        Underivable: The model made no features, or another number for some rows.
    """
    if role in run.placed:
        return _of_rows(run.placed[role], request)
    features = run.features.get(role)
    if features is None and run.written:
        return _of_rows(run.written[-1], request)
    if features is None and run.connected:
        features = list(run.connected.values())[-1]
    if features is None:
        features = run.encoded.get(role)
    if features is None:
        raise Underivable(run.reason or "the model makes no features of it")
    width = getattr(request.text_config, "hidden_size", None)
    elements = sum(part.numel() for part in _tensors(_features(features)))
    widths = [part.shape[-1] for part in _tensors(_features(features))]
    if not elements:
        raise Underivable("the model makes no features of it")
    return _of_rows(
        elements // (width if isinstance(width, int) and elements % width == 0 else widths[0]), request
    )


def _of_rows(count: int, request: InputRequest) -> int:
    if count % request.batch:
        raise Underivable(f"the model made {count} features for {request.batch} rows")
    return count // request.batch


class _Written(TorchFunctionMode):
    """Notes how much a model puts in the place of something else."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.masked_scatter, torch.masked_scatter) and not kwargs:
            over, _, source = args
            self.counts.append(source.numel() // (over.shape[-1] if over.dim() > 2 else 1))
        if func is torch.Tensor.__setitem__:
            _, place, rows = args
            is_mask = isinstance(place, torch.Tensor) and place.dtype is torch.bool
            if is_mask and isinstance(rows, torch.Tensor) and rows.dim() == 2 and rows.shape[0]:
                self.counts.append(rows.shape[0])
        return func(*args, **(kwargs or {}))


def _stop(module: nn.Module, args: Any, kwargs: Any) -> None:
    raise _LanguageReached


def _language_models(module: Any, found: tuple[Place, ...]) -> list[nn.Module]:
    parts = [module.get_submodule(place.path) for place in found if place.role == "text" and place.path]
    try:
        decoder = module.get_decoder()
    except (AttributeError, NotImplementedError):
        decoder = None
    own = [decoder] if isinstance(decoder, nn.Module) else []
    # Neither a module around an encoder nor one with a method that encodes is the language model.
    whole = [module, *(module.get_submodule(place.path) for place in found if place.method != FORWARD)]
    encoders = [
        module.get_submodule(place.path)
        for place in found
        if place.role in ("vision", "audio") and place.method == FORWARD
    ]
    inside = {id(inner) for encoder in encoders for inner in encoder.modules()} | set(map(id, whole))
    return [
        part
        for part in dict.fromkeys([*own, *parts])
        if id(part) not in inside
        and not any(encoder is inner for encoder in encoders for inner in part.modules())
    ]


@contextmanager
def _counted(part: Any, counts: dict[str, int]) -> Iterator[None]:
    """Note how many features the part compares with its placeholder tokens."""
    original: Callable[..., Any] = getattr(part, _COMPARING)
    parameters = inspect.signature(original)

    def compared(*args: Any, **kwargs: Any) -> Any:
        for name, value in parameters.bind(*args, **kwargs).arguments.items():
            if name in _FEATURES and isinstance(value, torch.Tensor):
                counts[_FEATURES[name]] = value.numel() // value.shape[-1]
        return original(*args, **kwargs)

    object.__setattr__(part, _COMPARING, compared)
    try:
        yield
    finally:
        object.__delattr__(part, _COMPARING)


@contextmanager
def _recorded(module: nn.Module, place: Place, results: dict[str, Any], key: str) -> Iterator[None]:
    owner = module.get_submodule(place.path)
    original: Callable[..., Any] = getattr(owner, place.method)
    is_own = place.method in vars(owner)

    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        results[key] = result
        return result

    object.__setattr__(owner, place.method, method)
    try:
        yield
    finally:
        if is_own:
            object.__setattr__(owner, place.method, original)
        else:
            object.__delattr__(owner, place.method)


def _features(encoded: Any) -> Any:
    """Return what replaces the tokens: projected features, or else the encoder's output (Llama 4)."""
    for name in ("pooler_output", "last_hidden_state"):
        if getattr(encoded, name, None) is not None:
            return getattr(encoded, name)
    return encoded


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
