"""Evaluate `transformers_inputs.toml`, which contains an expression for each input of transformers models."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from fakexport.models.sources.media_inputs.fixed_numbers import as_numbers
from fakexport.models.sources.media_inputs.image_grids import GRID, grid_layout
from fakexport.models.sources.shape_expressions import Builder, constant, expression, table
from fakexport.models.sources.transformers.input_request import InputRequest, Underivable

# Just over one second of speech after the convolutions; divisible by common subsampling factors.
_FRAMES = 64
_SAMPLES = 16_000
_USUAL_BINS = 80
_USUAL_SIZE = 224
_FILE = "transformers_inputs.toml"
_PACKAGE = "fakexport.models.sources.transformers"


def inputs_of_type(model_type: str) -> dict[str, str]:
    """Return the expression for each input of a model type; `never` if the type has no such input."""
    found = table(_PACKAGE, _FILE).get(model_type, {})
    return {name: text for name, text in found.items() if name not in ("SIDES", "PIXELS")}


def builder(model_type: str, name: str) -> Builder | None:
    """Return the function that creates an input, or None if the table has no expression for this input."""
    expressions = table(_PACKAGE, _FILE)
    text = expressions.get(model_type, {}).get(name) or expressions["ANY"].get(name)
    return None if text is None else expression(text, _NAMES)


def layouts(request: InputRequest, name: str) -> Iterator[dict[str, Any]]:
    """Yield candidates for an image or audio input and its sizes and masks, with one image or audio clip per
    row.

    The parameter names of `forward` determine the candidates. The caller runs the model to find one that
    works.

    Raises:
        Underivable: no rule of the table derives the input from the config.
    """
    if missing := [each for each in request.parameters if _OF_PROCESSORS.get(each) == name]:
        raise Underivable(f"only the model's processor can compute {', '.join(missing)}")
    if name == "pixel_values" and GRID in request.parameters:
        yield grid_layout(request, height_and_width(request))
        return
    has_tiles = getattr(request.config, "image_grid_pinpoints", None)
    if name == "pixel_values" and has_tiles and "aspect_ratio_ids" not in request.parameters:
        yield _tiles(request)
        return
    rows: Any = [row for row in table(_PACKAGE, _FILE)["layout"] if name in row]
    known = {request.config.model_type, *request.parameters}
    found = next((row["needs"] for row in rows if row["needs"] in known), "ANY")
    for row in rows:
        if row["needs"] == found:
            texts = {each: text for each, text in row.items() if each in request.parameters}
            values = {each: expression(text, _NAMES)(request) for each, text in texts.items()}
            made = {each: value for each, value in values.items() if value is not None}
            if name in made:
                yield made


# Parameters whose values only a processor can compute, and the input to which they belong.
_OF_PROCESSORS = {
    "chunk_sample_lengths": "input_features",
    "image_token_pooling": "pixel_values",
    "images_per_sample": "pixel_values",
    "input_values_cutoffs": "input_values",
}


def _tiles(request: InputRequest) -> dict[str, Any]:
    """Return `pixel_values` for an image of one tile: the tiles of the best fitting grid, and the image."""
    counting = getattr(sys.modules[type(request.module).__module__], "image_size_to_num_patches", None)
    if counting is None:
        raise Underivable("only the model's processor can compute how many tiles an image has")
    side = request.config.vision_config.image_size
    size = (side, side) if isinstance(side, int) else (side[0], side[-1])
    tiles = counting(size, request.config.image_grid_pinpoints, size[0])
    pixels = request.floats(request.batch, tiles, *_image(request).shape[1:])
    return {"pixel_values": pixels, "image_sizes": [size] * request.batch}


def _image(request: InputRequest) -> torch.Tensor:
    """Return `pixel_values` of shape `[batch, channels, height, width]`, or of the shape in the table."""
    made: torch.Tensor = _of_type(request, "PIXELS", "floats(B, CHANNELS, *SIDES)")
    return made


def _video(request: InputRequest) -> torch.Tensor:
    """Return frames of shape `[batch, frames, channels, height, width]`."""
    frames = request.setting("num_frames", "frames_per_clip", default=2)
    return request.floats(request.batch, frames, _channels(request), *height_and_width(request))


def height_and_width(request: InputRequest) -> list[int]:
    """Return the height and width of an image in pixels: the size in the config, or 224 x 224.

    Sizes are rounded up so that the image divides into windows (RF-DETR), or down so that it divides into
    merged patches (Idefics 3). If the model supports only certain numbers of patches (Aria), the size results
    in one of them.
    """
    sides: list[int] | None = _of_type(request, "SIDES", "None")
    sides = sides or _size(request)
    windows, patch = request.setting("num_windows_side", "num_windows"), request.setting("patch_size")
    if not isinstance(patch, int):
        return sides
    # In models without image tokens, `scale_factor` has a different meaning.
    is_text = request.setting("image_token_id") is not None
    merged = request.setting("scale_factor", default=1) if is_text else 1
    if isinstance(merged, int) and merged > 1:
        return [max(side // (merged * patch), 1) * merged * patch for side in sides]
    if taken := request.setting("projector_patch_to_query_dict"):
        count = sides[0] // patch * (sides[1] // patch)
        return sides if count in taken else [math.isqrt(min(taken)) * patch] * 2
    if isinstance(windows, int):
        return [-(-side // (windows * patch)) * windows * patch for side in sides]
    return sides


def _size(request: InputRequest) -> list[int]:
    size: Any = (
        request.setting("image_size", "input_size", "img_size", "max_img_size", "crop_size", "resolution")
        or getattr(getattr(request.config, "prompt_encoder_config", None), "image_size", None)
        or _size_of_timm(request)
    )
    if isinstance(size, dict):
        size = (size.get("height", _USUAL_SIZE), size.get("width", _USUAL_SIZE))
    return [int(size[0]), int(size[-1])] if isinstance(size, (list, tuple)) else [int(size)] * 2


def _size_of_timm(request: InputRequest) -> Any:
    """Return the image size of a timm model inside the model, because no config contains this size."""
    found = (getattr(part, "pretrained_cfg", None) for part in request.module.modules())
    size = next((known["input_size"] for known in found if isinstance(known, dict)), (_USUAL_SIZE,))
    return size[-2:]


def _of_type(request: InputRequest, name: str, usual: str) -> Any:
    text = table(_PACKAGE, _FILE).get(request.config.model_type, {}).get(name, usual)
    return expression(text, _NAMES)(request)


def _channels(request: InputRequest) -> int:
    channels = request.setting("num_channels", "in_channels", "in_chans", "num_input_channels", default=3)
    return int(channels)


def _grid(request: InputRequest) -> Callable[[int], list[int]]:
    def grid(multiple: int) -> list[int]:
        patch = request.setting("encoder_patch_size", "patch_size")
        if not isinstance(patch, int):
            raise Underivable("the config has no patch_size")
        return [max(side // (patch * multiple), 1) * multiple for side in height_and_width(request)]

    return grid


def _number(request: InputRequest) -> Callable[[str, list[int]], list[Any]]:
    def number(name: str, row: list[int]) -> list[Any]:
        tensor = request.values(torch.tensor([row])).repeat(request.batch, 1)
        return as_numbers(request.module, name, tensor, [row] * request.batch)

    return number


def _samples(request: InputRequest) -> torch.Tensor:
    """Return audio samples of shape `[batch, samples]` or `[batch, channels, samples]`.

    Some models use the name `input_values` for a spectrogram. The shape is then `[batch, frames, bins]`.
    """
    bins = request.setting("num_mel_bins")
    if bins is not None and request.setting("conv_stride") is None:
        return request.floats(request.batch, request.setting("max_length", default=2 * _FRAMES), bins)
    strides, kernels, length = request.setting("conv_stride"), request.setting("conv_kernel"), _SAMPLES
    if isinstance(strides, (list, tuple)) and isinstance(kernels, (list, tuple)):
        length = _FRAMES  # The length after the convolutions.
        for stride, kernel in zip(reversed(strides), reversed(kernels), strict=True):
            length = (length - 1) * stride + kernel
    channels = request.setting("audio_channels")
    return request.floats(request.batch, *([] if channels is None else [channels]), length)


def _spectrogram(request: InputRequest) -> torch.Tensor:
    """Return a spectrogram `[batch, frames, bins]`; time is last for models with a convolution along it."""
    bins = request.setting("num_mel_bins", "feature_size")
    window = request.setting("n_window")
    if bins is not None and window is not None:
        return request.floats(request.batch, bins, 2 * window)  # Qwen's speech encoders read windows.
    parts = request.module.modules()
    if bins is not None and any(isinstance(part, nn.Conv1d) and part.in_channels == bins for part in parts):
        frames = request.setting("max_source_positions", default=_FRAMES)
        return request.floats(request.batch, bins, 2 * frames)
    width = request.setting("feature_projection_input_dim", "input_dim", default=bins or _USUAL_BINS)
    stacked = request.setting("num_stacked_frames", default=1)
    return request.floats(request.batch, 2 * _FRAMES, width * stacked)


def _sound_mask(request: InputRequest) -> torch.Tensor:
    """Return a mask of ones for the frames of a spectrogram."""
    shape, bins = _spectrogram(request).shape, request.setting("num_mel_bins", "feature_size")
    return request.ids(request.batch, shape[-1 if shape[-2] == bins else -2], value=1)


def _steps(request: InputRequest) -> int:
    lags = request.setting("lags_sequence", default=[0])
    return int(request.setting("context_length", "prediction_length", default=64) + max(lags))


def _series(request: InputRequest) -> list[int]:
    """Return a list with the number of channels of a time series; [] if it has no channel dimension."""
    channels = request.setting("num_input_channels", "input_size", default=1)
    return [channels] if channels > 1 or request.setting("num_input_channels") is not None else []


_NAMES: dict[str, Builder] = {
    "FRAMES": constant(_FRAMES),
    "SAMPLES": constant(_SAMPLES),
    "CODEBOOKS": lambda request: getattr(request.text_config, "num_codebooks", None) or 1,
    "SIDES": height_and_width,
    "CHANNELS": _channels,
    "PATCH": lambda request: request.setting("encoder_patch_size", "patch_size"),
    "PIXELS": _image,
    "VIDEO": _video,
    "STEPS": _steps,
    "SERIES": _series,
    "grid": _grid,
    "halved": constant(lambda sides, times: [side * 2**times for side in sides]),
    "number": _number,
    "values": lambda request: lambda row: request.values(torch.tensor(row)),
    "sound": _samples,
    "spectrum": _spectrogram,
    "spectrum_mask": _sound_mask,
    "type": constant(type),
    "tuple": constant(tuple),
}
