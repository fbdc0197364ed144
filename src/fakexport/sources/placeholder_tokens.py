"""Images and sounds in addition to text: as inputs of their own, or in the place of placeholder tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fakexport.sources.feature_counts import features_per_row, run_encoders, runs_without_values
from fakexport.sources.fixed_numbers import fixed_note
from fakexport.sources.image_grids import GRID, around, image_grid_inputs, positions_of
from fakexport.sources.image_inputs import flattened_patches, video
from fakexport.sources.image_layouts import image_layouts
from fakexport.sources.input_request import InputRequest, Underivable
from fakexport.sources.sound_layouts import fixed_masks, sound_layouts
from fakexport.sources.source import ExampleInputs
from fakexport.sources.source_error import first_line


@dataclass(frozen=True)
class _Modality:
    """Inputs in addition to text.

    Args:
        name: Name of the input.
        role: What encodes it.
        layouts: Yields it as the model may take it, with sizes and masks.
        token: Names of the setting that holds the placeholder token.
    """

    name: str
    role: str
    layouts: Callable[[InputRequest], Iterator[dict[str, Any]]]
    token: tuple[str, ...]


_CODES = "audio_input_ids"
_SOUND_TOKENS = ("audio_token_id", "audio_token_index", "sound_context_token_id")
_MODALITIES = (
    _Modality(
        "pixel_values",
        "vision",
        image_layouts,
        ("image_token_id", "image_token_index", "img_context_token_id", "video_token_index"),
    ),
    _Modality(
        "flattened_patches", "vision", lambda r: iter([{"flattened_patches": flattened_patches(r)}]), ()
    ),
    _Modality("input_features", "audio", lambda r: sound_layouts(r, "input_features"), _SOUND_TOKENS),
    _Modality("input_values", "audio", lambda r: sound_layouts(r, "input_values"), _SOUND_TOKENS),
    _Modality(_CODES, "audio", lambda r: sound_layouts(r, _CODES), _SOUND_TOKENS),
)

# Parameters that tell where an image is: a model that has one needs its value.
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

# As many as show that there are several: Qwen2-Audio takes a single one for all of a sound.
_GUESS = 2

# Characters of an error that a model raises.
_LONGEST = 160

_VIDEOS = "pixel_values_videos"

# What a model is given to look at or to listen to. Other optional inputs leave no part of it out.
_IMAGES = re.compile(r"\w*pixel_values\w*|flattened_patches")
_SOUNDS = re.compile(r"(input|audio|speech)_(features|values)|audio_(codes|input_ids)")


def with_other_modalities(request: InputRequest, inputs: Mapping[str, Any]) -> ExampleInputs:
    """Return the inputs with those of the other modalities, and names those that are omitted.

    A model with placeholder tokens gets as many of them as it makes features: it runs here up to its
    language model, which also shows that the inputs fit. One that takes a grid of patches gets the image with
    its grid.
    """
    found = dict(inputs)
    omitted, notes = {}, []
    if "target_sizes" in request.parameters and "input_ids" not in found:
        found |= next(image_layouts(request))  # a tower alone
    for modality in _MODALITIES:
        if "input_ids" not in found or modality.name not in request.parameters:
            continue
        if _is_built_without(request, modality.role):
            continue
        if not _has_placeholders(request, modality) and not _needs_geometry(request, modality):
            if modality.name not in found:
                found[modality.name] = next(modality.layouts(request))[modality.name]
            continue
        try:
            if modality.name == "pixel_values" and GRID in request.parameters:
                with_grid, note = image_grid_inputs(request, found["input_ids"], _token(request, modality))
                found |= with_grid
                notes.append(note)
            else:
                found |= _with_modality(request, modality, found)
        except Underivable as reason:
            if modality.name not in found:
                omitted[modality.name] = str(reason)
    for role, is_content in (("vision", _IMAGES.fullmatch), ("audio", _SOUNDS.fullmatch)):
        if _is_built_without(request, role):
            continue
        names = [name for name in request.parameters if is_content(name)]
        # One input of a kind is enough: images and videos go through one tower.
        if {*names, "inputs"} & {*found, *omitted}:
            continue
        if names == [_VIDEOS] and request.setting("video_token_id", "video_token_index") is None:
            found[_VIDEOS] = video(request)
        elif names:
            omitted[names[0]] = "no rule determines its shape"
    notes += _notes(found)
    return ExampleInputs(kwargs=found, assumptions=tuple(notes), omitted=omitted)


def _is_built_without(request: InputRequest, role: str) -> bool:
    """Return whether the config has a part for what sees or listens, and it is empty (Gemma 4)."""
    return getattr(request.config, f"{role}_config", "") is None


def _with_modality(request: InputRequest, modality: _Modality, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the modality's inputs in the first fitting layout, and text that begins with its tokens."""
    reasons: dict[str, str] = {}
    for layout in modality.layouts(request):
        try:
            return _in_layout(request, modality, {**known, **layout})
        except Underivable as reason:
            shape = ",".join(map(str, layout[modality.name].shape))
            reasons.setdefault(str(reason)[:_LONGEST], shape)
    raise Underivable("; ".join(f"as [{shape}]: {reason}" for reason, shape in reasons.items()))


def _in_layout(request: InputRequest, modality: _Modality, inputs: Mapping[str, Any]) -> dict[str, Any]:
    count = _fixed_count(request, modality, inputs)
    if count is None:
        count = features_per_row(
            request, run_encoders(request, _with_tokens(request, modality, inputs, _GUESS)), modality.role
        )
    found = _with_tokens(request, modality, inputs, count)
    run = run_encoders(request, found)
    if not run.is_complete:
        raise Underivable(run.reason)
    if modality.role == "audio":
        found |= _later_positions(request, found)
        return found if runs_without_values(request, found) else {**found, **fixed_masks(request, found)}
    if not any(isinstance(value, list) for value in found.values()):
        return found
    positions = positions_of(request.module, found)
    return found | {name: request.values(value) for name, value in positions.items()}


def _later_positions(request: InputRequest, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return positions of all tokens, where those of a text with an image alone are known."""
    mask = inputs.get("feature_attention_mask")
    if "position_ids" not in inputs or mask is None:
        return {}
    try:
        found = positions_of(request.module, {**inputs, "audio_seqlens": mask.sum(-1)})
    except Exception as error:  # whatever a model raises that counts tokens
        raise Underivable(f"its positions cannot be told: {first_line(error)}") from error
    return {name: request.values(value) for name, value in found.items()}


def _fixed_count(request: InputRequest, modality: _Modality, inputs: Mapping[str, Any]) -> int | None:
    """Return how many tokens stand for an image or a sound where its features do not tell; else None."""
    if modality.name == _CODES:
        return int(inputs[_CODES].shape[1])  # one for each frame
    if "image_embeds_position_mask" in request.parameters:
        return int(request.setting("latent_query_num"))
    if not _has_placeholders(request, modality):
        return 0
    return 1 if "cross_attention_mask" in request.parameters else None


def _with_tokens(
    request: InputRequest, modality: _Modality, inputs: Mapping[str, Any], count: int
) -> dict[str, Any]:
    text = inputs["input_ids"]
    is_named = _has_placeholders(request, modality)
    token = _token(request, modality) if is_named else 0
    before, after = around(request, modality.role)
    counted = [*((value, 1) for value in before), (token, count), *((value, 1) for value in after)]
    placed = [request.ids(request.batch, number, value=value) for value, number in counted]
    ids = torch.cat([*placed, text], dim=1)
    mask = {"attention_mask": torch.ones_like(ids)} if "attention_mask" in request.parameters else {}
    is_given = [torch.zeros_like(each) for each in (*placed, text)]
    is_given[len(before)].fill_(1)
    return {
        **inputs,
        "input_ids": ids,
        **mask,
        **companions_of_tokens(request, modality.role, torch.cat(is_given, dim=1), inputs),
    }


def _notes(found: Mapping[str, Any]) -> Iterator[str]:
    numbers = [name for name, value in found.items() if isinstance(value, list)]
    if numbers:
        yield fixed_note(numbers)


def _token(request: InputRequest, modality: _Modality) -> int:
    token = request.setting(*modality.token)
    if not isinstance(token, int):
        raise Underivable("the config names no placeholder token for it")
    return token


def _has_placeholders(request: InputRequest, modality: _Modality) -> bool:
    configs = (request.config, getattr(request.config, "vlm_config", None))
    return any(hasattr(config, name) for config in configs for name in modality.token)


def _needs_geometry(request: InputRequest, modality: _Modality) -> bool:
    return modality.role == "vision" and not _GEOMETRY.isdisjoint(request.parameters)


# Types whose processor tells the prompt (0) from what follows; a prompt is read in both directions. Without
# it, eager mode drops a mask of ones and reads in both directions too; a trace cannot drop it.
_PROMPTED = frozenset({"paligemma", "colpali"})

_KINDS = {"vision": 1, "audio": 3}


def companions_of_tokens(
    request: InputRequest, role: str, is_placeholder: torch.Tensor, inputs: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Return what a processor returns next to the ids."""
    parameters, found = request.parameters, {}
    batch, length = is_placeholder.shape
    if request.config.model_type in _PROMPTED:
        found["token_type_ids"] = torch.zeros_like(is_placeholder)
    # Tokens of one image see each other (Gemma 3).
    elif "token_type_ids" in parameters:
        found["token_type_ids"] = is_placeholder.clone()
    if "mm_token_type_ids" in parameters:
        kinds = is_placeholder * _KINDS[role]
        earlier = inputs.get("mm_token_type_ids")
        if earlier is not None:
            kinds[:, length - earlier.shape[1] :] = earlier
        found["mm_token_type_ids"] = kinds
    if "image_embeds_position_mask" in parameters:
        found["image_embeds_position_mask"] = is_placeholder.bool()
    if "cross_attention_mask" in parameters and "aspect_ratio_mask" in inputs:
        tiles = inputs["aspect_ratio_mask"].shape[-1]
        found["cross_attention_mask"] = request.ids(batch, length, 1, tiles, value=1)
    # That of FLAVA is of the patches of an image, and not of the images that a token sees.
    if "image_attention_mask" in parameters and request.config.model_type != "flava":
        found["image_attention_mask"] = request.ids(batch, length, 1, value=1)
    return found
