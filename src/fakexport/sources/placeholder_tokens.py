"""Images and sounds in addition to text: as inputs of their own, or in the place of placeholder tokens."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fakexport.sources.audio_inputs import features, waveform
from fakexport.sources.image_grids import GRID, image_grid_inputs
from fakexport.sources.image_inputs import image
from fakexport.sources.input_request import InputRequest, Underivable
from fakexport.sources.source import ExampleInputs
from fakexport.sources.source_error import first_line


@dataclass(frozen=True)
class _Modality:
    """Inputs in addition to text.

    Args:
        name: Name of the input.
        build: Makes it.
        encode: Name of the method that turns it into features, one for each placeholder token.
        token: Names of the setting that holds the placeholder token.
    """

    name: str
    build: Callable[[InputRequest], torch.Tensor]
    encode: str
    token: tuple[str, ...]


_MODALITIES = (
    _Modality("pixel_values", image, "get_image_features", ("image_token_id", "image_token_index")),
    _Modality("input_features", features, "get_audio_features", ("audio_token_id", "audio_token_index")),
    _Modality("input_values", waveform, "get_audio_features", ("audio_token_id", "audio_token_index")),
)

# Parameters that tell where an image is: a model that has one needs its value, which no config tells.
_GEOMETRY = frozenset(
    {
        "aspect_ratio_ids",
        "image_attention_mask",
        "image_embeds_position_mask",
        "image_grid_hw",
        "image_grid_thw",
        "image_grids",
        "image_position_ids",
        "image_sizes",
        "pixel_attention_mask",
        "spatial_shapes",
        "target_sizes",
    }
)

# What a model is given to look at or to listen to. Other optional inputs leave no part of it out.
_IMAGES = re.compile(r"\w*pixel_values\w*")
_SOUNDS = re.compile(r"(input|audio|speech)_(features|values)|audio_codes")


def with_other_modalities(request: InputRequest, inputs: Mapping[str, Any]) -> ExampleInputs:
    """Return the inputs with those of the other modalities, and names those that are omitted.

    A model with placeholder tokens gets as many of them as the modality's encoder, run here once, gives
    features; one that takes a grid of patches gets the image with its grid. Where more inputs are needed
    (sizes of tiles), it gets text alone.

    Args:
        request: Request of a model.
        inputs: The required ones and those of text, among them `input_ids` if the model takes text.
    Returns:
        Keyword inputs in no particular order.
    """
    found = dict(inputs)
    omitted, notes = {}, []
    for modality in _MODALITIES:
        if "input_ids" not in found or modality.name not in request.parameters:
            continue
        value = found[modality.name] if modality.name in found else modality.build(request)
        if not _has_placeholders(request, modality) and not _needs_geometry(request, modality):
            found[modality.name] = value
            continue
        try:
            if modality.name == "pixel_values" and GRID in request.parameters:
                with_grid, note = image_grid_inputs(request, found["input_ids"], _token(request, modality))
                found |= with_grid
                notes.append(note)
            else:
                found |= _in_place_of_tokens(request, modality, value, found["input_ids"])
        except Underivable as reason:
            if modality.name not in found:
                omitted[modality.name] = str(reason)
    for is_content in (_IMAGES.fullmatch, _SOUNDS.fullmatch):
        names = [name for name in request.parameters if is_content(name)]
        # One input of a kind is enough: images and videos go through one tower.
        if names and not {*names, "inputs"} & {*found, *omitted}:
            omitted[names[0]] = "no rule determines its shape"
    return ExampleInputs(kwargs=found, assumptions=tuple(notes), omitted=omitted)


def _in_place_of_tokens(
    request: InputRequest, modality: _Modality, value: torch.Tensor, text: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the modality's input, and text that begins with the tokens that it is put in the place of."""
    if not _has_placeholders(request, modality):
        raise Underivable("it depends on other inputs that give its position")
    token = _token(request, modality)
    placeholders = request.ids(request.batch, _tokens_per_row(request, modality, value), value=token)
    ids = torch.cat([placeholders, text], dim=1)
    mask = {"attention_mask": torch.ones_like(ids)} if "attention_mask" in request.parameters else {}
    return {modality.name: value, "input_ids": ids, **mask}


def _token(request: InputRequest, modality: _Modality) -> int:
    tokens = (getattr(request.config, name, None) for name in modality.token)
    token = next((token for token in tokens if isinstance(token, int)), None)
    if token is None:
        raise Underivable("the config names no placeholder token for it")
    return token


def _has_placeholders(request: InputRequest, modality: _Modality) -> bool:
    return any(hasattr(request.config, name) for name in modality.token)


def _needs_geometry(request: InputRequest, modality: _Modality) -> bool:
    return modality.name == "pixel_values" and not _GEOMETRY.isdisjoint(request.parameters)


def _tokens_per_row(request: InputRequest, modality: _Modality, value: torch.Tensor) -> int:
    encode = getattr(request.module, modality.encode, None)
    if encode is None:
        raise Underivable(f"the model has no {modality.encode}")
    try:
        with torch.no_grad():
            encoded = encode(value, **_settings_of(encode, request))
    except Exception as error:  # whatever a model raises that needs another shape, or more inputs
        raise Underivable(f"{modality.encode} raised {first_line(error)}") from error
    count = sum(part.numel() // part.shape[-1] for part in _tensors(_features(encoded)))
    if count == 0 or count % request.batch:
        raise Underivable(f"{modality.encode} returned {count} features for {request.batch} rows")
    return count // request.batch


def _settings_of(encode: Callable[..., Any], request: InputRequest) -> dict[str, Any]:
    """Return what else the method requires, if it is a setting of the config (Llama 4 in
    transformers 5.17).
    """
    _, *others = inspect.signature(encode).parameters.values()
    named = {
        p.name: request.setting(p.name)
        for p in others
        if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty
    }
    return {name: value for name, value in named.items() if value is not None}


def _features(encoded: Any) -> Any:
    """Return what is put in the place of the tokens: projected as a rule, else as the encoder left it (Llama
    4).
    """
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
