"""Add images and audio to text, as separate inputs or at the positions of placeholder tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fakexport.models.sources.media_inputs.encoder_runs import features_per_row, run_encoders
from fakexport.models.sources.media_inputs.fixed_numbers import fixed_notes
from fakexport.models.sources.media_inputs.image_grids import GRID, counts_special_tokens
from fakexport.models.sources.media_inputs.input_table import builder, layouts
from fakexport.models.sources.media_inputs.traceable_inputs import traceable_inputs
from fakexport.models.sources.source import ExampleInputs
from fakexport.models.sources.transformers.input_request import InputRequest, Underivable


@dataclass(frozen=True)
class _Modality:
    """A modality besides text: its main input, its encoder's role, and settings of its placeholder token."""

    name: str
    role: str
    token: tuple[str, ...]


_CODES = "audio_input_ids"
_IMAGE_TOKENS = ("image_token_id", "image_token_index", "img_context_token_id", "video_token_index")
_SOUND_TOKENS = ("audio_token_id", "audio_token_index", "sound_context_token_id")
_MODALITIES = (
    _Modality("pixel_values", "vision", _IMAGE_TOKENS),
    _Modality("flattened_patches", "vision", ()),
    *(_Modality(name, "audio", _SOUND_TOKENS) for name in ("input_features", "input_values", _CODES)),
)

# Parameters that describe the geometry of an image. A model with such a parameter requires a value for it.
_GEOMETRY = frozenset(
    {"aspect_ratio_ids", "image_attention_mask", "image_embeds_position_mask", "image_grid_hw", GRID}
    | {"image_grids", "image_position_ids", "image_sizes", "pixel_attention_mask", "spatial_shapes"}
    | {"target_sizes"}
)

# Initial number of placeholder tokens. It is above 1, because Qwen2-Audio interprets a single one as a whole
# audio clip.
_GUESS = 2

# Maximum length of a model's error message.
_LONGEST = 160

_VIDEOS = "pixel_values_videos"

# Names of image and audio inputs. Other optional inputs are not needed to run all parts of the model.
_IMAGES = re.compile(r"\w*pixel_values\w*|flattened_patches")
_SOUNDS = re.compile(r"(input|audio|speech)_(features|values)|audio_(codes|input_ids)")


def with_other_modalities(request: InputRequest, inputs: Mapping[str, Any]) -> ExampleInputs:
    """Add the inputs of modalities other than text, and report omitted inputs.

    The text gets one placeholder token for each feature. To count the features, the model is run up to its
    language model, which also shows that the inputs work. A model that needs a grid of patches gets the image
    with its grid.
    """
    found = dict(inputs)
    omitted, notes = {}, []
    for modality in _MODALITIES:
        if "input_ids" not in found or modality.name not in request.parameters:
            continue
        if _is_built_without(request, modality.role):
            continue
        try:
            if _has_placeholders(request, modality) or _needs_geometry(request, modality):
                found, more = _with_modality(request, modality, found)
                notes += more
            elif modality.name not in found:
                found[modality.name] = next(layouts(request, modality.name))[modality.name]
        except Underivable as reason:
            if modality.name not in found:
                omitted[modality.name] = str(reason)
    for role, is_content in (("vision", _IMAGES.fullmatch), ("audio", _SOUNDS.fullmatch)):
        if _is_built_without(request, role):
            continue
        names = [name for name in request.parameters if is_content(name)]
        # Only one input per kind is needed, because images and videos use the same tower.
        if {*names, "inputs"} & {*found, *omitted}:
            continue
        if names == [_VIDEOS] and request.setting("video_token_id", "video_token_index") is None:
            build = builder(request.config.model_type, _VIDEOS)
            found[_VIDEOS] = None if build is None else build(request)
        elif names:
            omitted[names[0]] = "its shape cannot be derived from the config"
    return ExampleInputs(kwargs=found, assumptions=(*notes, *fixed_notes(found)), omitted=omitted)


def _is_built_without(request: InputRequest, role: str) -> bool:
    """Return whether a model has no encoder for a role: the config of the encoder is None (Gemma 4)."""
    return getattr(request.config, f"{role}_config", "") is None


def _with_modality(
    request: InputRequest, modality: _Modality, known: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return all inputs, with a modality's in the first layout that works, and notes for the report."""
    reasons: dict[str, str] = {}
    for layout in layouts(request, modality.name):
        try:
            return _in_layout(request, modality, {**known, **layout})
        except Underivable as reason:
            shape = ",".join(map(str, layout[modality.name].shape))
            reasons.setdefault(str(reason)[:_LONGEST], shape)
    raise Underivable("; ".join(f"with shape [{shape}]: {reason}" for reason, shape in reasons.items()))


def _in_layout(
    request: InputRequest, modality: _Modality, inputs: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    tokens = _with_tokens(request, modality, inputs, _count(request, modality, inputs))
    found, notes, is_complete = traceable_inputs(request, tokens)
    if modality.role != "vision" or GRID not in inputs:
        if not is_complete:
            raise Underivable(notes[0])
        return found, notes
    # A tower that reads the values of a grid may not run on fake tensors.
    _, rows, columns = inputs[GRID].tolist()[0]
    note = f"one image of {rows} x {columns} patches per row"
    return found, ["; ".join([note, *notes]) if is_complete else note]


def _count(request: InputRequest, modality: _Modality, inputs: Mapping[str, Any]) -> int:
    """Return the number of placeholder tokens that an input needs in each row: one for each feature."""
    if modality.name == _CODES:
        return int(inputs[_CODES].shape[1])  # One for each frame.
    if "image_embeds_position_mask" in request.parameters:
        return int(request.setting("latent_query_num"))
    if not _has_placeholders(request, modality):
        return 0
    if "cross_attention_mask" in request.parameters:
        return 1
    run = run_encoders(request, _with_tokens(request, modality, inputs, _GUESS))
    return features_per_row(request, run, modality.role)


def _with_tokens(
    request: InputRequest, modality: _Modality, inputs: Mapping[str, Any], count: int
) -> dict[str, Any]:
    text = inputs["input_ids"]
    token = _token(request, modality) if _has_placeholders(request, modality) else 0
    counts_ends = counts_special_tokens(request.module)
    before, after = request.around_media(modality.role) if counts_ends else ([], [])
    counted = [*((value, 1) for value in before), (token, count), *((value, 1) for value in after)]
    placed = [request.ids(request.batch, number, value=value) for value, number in counted]
    ids = torch.cat([*placed, text], dim=1)
    mask = {"attention_mask": torch.ones_like(ids)} if "attention_mask" in request.parameters else {}
    is_given = [torch.zeros_like(each) for each in (*placed, text)]
    is_given[len(before)].fill_(1)
    companions = _companions(request, modality.role, torch.cat(is_given, dim=1), inputs)
    return {**inputs, "input_ids": ids, **mask, **companions}


def _token(request: InputRequest, modality: _Modality) -> int:
    token = request.setting(*modality.token)
    if not isinstance(token, int):
        raise Underivable("the config has no placeholder token for this input")
    return token


def _has_placeholders(request: InputRequest, modality: _Modality) -> bool:
    configs = (request.config, getattr(request.config, "vlm_config", None))
    return any(hasattr(config, name) for config in configs for name in modality.token)


def _needs_geometry(request: InputRequest, modality: _Modality) -> bool:
    return modality.role == "vision" and not _GEOMETRY.isdisjoint(request.parameters)


# Model types whose processor marks the tokens of the prompt with 0. Attention within a prompt is
# bidirectional. Without this input, eager mode drops a mask of ones, so its attention is also bidirectional,
# but a trace cannot drop the mask.
_PROMPTED = frozenset({"paligemma", "colpali"})

_KINDS = {"vision": 1, "audio": 3}


def _companions(
    request: InputRequest, role: str, is_placeholder: torch.Tensor, inputs: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Return the tensors that a processor would return in addition to the token ids."""
    found = {}
    if request.config.model_type in _PROMPTED:
        found["token_type_ids"] = torch.zeros_like(is_placeholder)
    # Tokens of one image attend to each other (Gemma 3).
    elif "token_type_ids" in request.parameters:
        found["token_type_ids"] = is_placeholder.clone()
    if "mm_token_type_ids" in request.parameters:
        kinds = is_placeholder * _KINDS[role]
        earlier = inputs.get("mm_token_type_ids")
        if earlier is not None:
            kinds[:, is_placeholder.shape[1] - earlier.shape[1] :] = earlier
        found["mm_token_type_ids"] = kinds
    if "image_embeds_position_mask" in request.parameters:
        found["image_embeds_position_mask"] = is_placeholder.bool()
    if "cross_attention_mask" in request.parameters and "aspect_ratio_mask" in inputs:
        tiles = inputs["aspect_ratio_mask"].shape[-1]
        found["cross_attention_mask"] = request.ids(*is_placeholder.shape, 1, tiles, value=1)
    # In FLAVA, this mask is for the patches of an image. In other models, it is for the images that a token
    # attends to.
    if "image_attention_mask" in request.parameters and request.config.model_type != "flava":
        found["image_attention_mask"] = request.ids(*is_placeholder.shape, 1, value=1)
    return found
