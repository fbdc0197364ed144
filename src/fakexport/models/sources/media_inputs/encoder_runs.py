"""Run a model up to its language model, to see if it accepts inputs, and to count its features."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from fakexport._torch.emulation.fake_tensors import unknown_values
from fakexport._torch.pytree import tree_leaves
from fakexport.models.sources.components.component_calls import ListedTensors, restored_attributes
from fakexport.models.sources.components.component_places import FORWARD, Place, places
from fakexport.models.sources.patched_forward import patched_forward
from fakexport.models.sources.source_error import first_line
from fakexport.models.sources.transformers.exporter_patches import exporter_patches
from fakexport.models.sources.transformers.input_request import InputRequest, Underivable

_OWN_STATE: Mapping[str, torch.Tensor] = MappingProxyType({})

# The method that most models use to find the placeholder tokens for features.
_COMPARING = "get_placeholder_mask"
_FEATURES = {"image_features": "vision", "audio_features": "audio"}
_ROLES = {"vision": "vision", "video": "vision", "audio": "audio"}


class _LanguageReached(BaseException):
    """Raised to end a run at the language model. Models do not catch it, because it is a `BaseException`."""


@dataclass
class EncoderRun:
    """The record of running a model until it calls its language model.

    Args:
        compared: Number of features that the model compared with its placeholder tokens, by role.
        encoded: Results of the model's methods that encode an image or audio, or of the encoders if there are
            no such methods, by role.
        error: The error that the model raised, or None.
        is_complete: Whether the run reached the language model or the end of the model.
    """

    compared: dict[str, int] = field(default_factory=dict)
    encoded: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    is_complete: bool = False

    @property
    def reason(self) -> str:
        """The error that stopped the run, as one line, or "" if there was none."""
        return "" if self.error is None else first_line(self.error)


def run_encoders(
    request: InputRequest, inputs: Mapping[str, Any], *, state: Mapping[str, torch.Tensor] = _OWN_STATE
) -> EncoderRun:
    """Run the model until it calls its language model.

    Args:
        inputs: Keyword inputs. The caller must record the values of fake inputs, because the model reads
            these values.
        state: Parameters and buffers to run with. Default: the model's.
    """
    module, run = request.module, EncoderRun()
    found = places(module)
    with ExitStack() as stack:
        stack.enter_context(restored_attributes(module))
        for place in found:
            if place.role in _ROLES:
                owner = module.get_submodule(place.path)
                method = _recorded(getattr(owner, place.method), place, run.encoded)
                stack.enter_context(patched_forward(owner, method, place.method))
        for part in module.modules():
            if callable(getattr(type(part), _COMPARING, None)):
                stack.enter_context(patched_forward(part, _counted(part, run.compared), _COMPARING))
        for language in _language_models(module, found):
            stack.callback(language.register_forward_pre_hook(_stop, with_kwargs=True).remove)
        stack.enter_context(torch.no_grad())
        stack.enter_context(ListedTensors())
        try:
            functional_call(module, dict(state), (), dict(inputs))
            run.is_complete = True
        except _LanguageReached:
            run.is_complete = True
        except Exception as error:  # Any error of a model that needs a different shape or more inputs.
            run.error = error
    return run


def runs_without_values(request: InputRequest, inputs: Mapping[str, Any]) -> bool:
    """Return whether the model reaches its language model when no values are known, as in a trace."""
    module = request.module
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with exporter_patches(), unknown_values({f".{n}": t for n, t in tensors.items()} | state) as unknown:
        traced = {name: unknown.pop(f".{name}") for name in tensors}
        return run_encoders(request, {**inputs, **traced}, state=unknown).is_complete


def features_per_row(request: InputRequest, run: EncoderRun, role: str) -> int:
    """Return the number of placeholder tokens that one batch row needs for the computed features."""
    count = run.compared.get(role)
    if count is None:
        encoded = run.encoded.get(role)
        tensors = [leaf for leaf in tree_leaves(_features(encoded)) if isinstance(leaf, torch.Tensor)]
        if not tensors or not (elements := sum(part.numel() for part in tensors)):
            raise Underivable(run.reason or "the model computes no features from this input")
        count = elements // tensors[0].shape[-1]
    if count % request.batch:
        raise Underivable(
            f"the model computed {count} features, not a multiple of the batch size {request.batch}"
        )
    return count // request.batch


def _stop(module: nn.Module, args: Any, kwargs: Any) -> None:
    raise _LanguageReached


def _language_models(module: Any, found: tuple[Place, ...]) -> Iterator[nn.Module]:
    try:
        decoder = module.get_decoder()
    except (AttributeError, NotImplementedError):
        decoder = None
    texts = (module.get_submodule(place.path) for place in found if place.role == "text" and place.path)
    # A module that contains an encoder, or that has an encoding method, is not the language model.
    others = {id(module)}
    for place in found:
        owner = module.get_submodule(place.path)
        if place.method != FORWARD:
            others.add(id(owner))
        elif place.role in ("vision", "audio"):
            others |= set(map(id, owner.modules()))
    for part in dict.fromkeys((decoder, *texts)):
        if isinstance(part, nn.Module) and others.isdisjoint(map(id, part.modules())):
            yield part


def _counted(part: Any, counts: dict[str, int]) -> Callable[..., Any]:
    """Wrap the method that finds placeholder tokens, to record how many features it compares with them."""
    original: Callable[..., Any] = getattr(part, _COMPARING)
    parameters = inspect.signature(original)

    def compared(*args: Any, **kwargs: Any) -> Any:
        for name, value in parameters.bind(*args, **kwargs).arguments.items():
            if name in _FEATURES and isinstance(value, torch.Tensor):
                counts[_FEATURES[name]] = value.numel() // value.shape[-1]
        return original(*args, **kwargs)

    return compared


def _recorded(original: Callable[..., Any], place: Place, results: dict[str, Any]) -> Callable[..., Any]:
    """Wrap a method to record its result, which overwrites that of an encoder that the method calls."""

    def method(*args: Any, **kwargs: Any) -> Any:
        results[_ROLES[place.role]] = result = original(*args, **kwargs)
        return result

    return method


def _features(encoded: Any) -> Any:
    """Return what replaces placeholder tokens: projected features, or the encoder's output (Llama 4)."""
    for name in ("pooler_output", "last_hidden_state"):
        if getattr(encoded, name, None) is not None:
            return getattr(encoded, name)
    return encoded
