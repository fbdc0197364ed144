"""Shapes of images and videos, read from a config of transformers."""

from __future__ import annotations

import math
from typing import Any

import torch

from fakexport.sources.input_request import InputRequest

USUAL_SIZE = 224
FRAMES = 2

# What no signature tells: a dimension for the frames of a video, or for the two images to match.
_VIDEO_TYPES = frozenset({"instructblipvideo", "timesformer", "tvp", "videomae", "videomt", "vivit", "xclip"})
_PAIR_TYPES = frozenset({"efficientloftr", "lightglue", "superglue"})
_PATCH_TYPES = frozenset({"inkling_mm_model", "inkling_vision", "molmo2_vision"})


def image(request: InputRequest) -> torch.Tensor:
    """Return `pixel_values` of shape `[batch, channels, height, width]`.

    For models of videos and of pairs of images, there is a dimension for them after the batch.
    """
    if request.config.model_type in _VIDEO_TYPES:
        return video(request)
    if request.config.model_type == "xclip_vision_model":  # frames of all videos, one after the other
        return video(request).flatten(0, 1)
    if request.config.model_type in _PATCH_TYPES:
        return _patches(request)
    pair = (2,) if request.config.model_type in _PAIR_TYPES else ()
    return request.floats(request.batch, *pair, _channels(request), *height_and_width(request))


def video(request: InputRequest) -> torch.Tensor:
    """Return frames of shape `[batch, frames, channels, height, width]`."""
    frames = request.setting("num_frames", "frames_per_clip", default=FRAMES)
    return request.floats(request.batch, frames, _channels(request), *height_and_width(request))


def flattened_patches(request: InputRequest) -> torch.Tensor:
    """Return patches of shape `[batch, patches, 2 + channels * patch size ** 2]`: row, column, pixels."""
    patch = request.setting("patch_size", default=16)
    return request.floats(request.batch, request.sequence, 2 + _channels(request) * patch * patch)


def _patches(request: InputRequest) -> torch.Tensor:
    """Return images in patches: `[batch, patches, pixels]`, or, of all images in one row, `[patches, frames,
    height, width, channels]`.
    """
    patch, channels = request.setting("patch_size"), _channels(request)
    frames = request.setting("temporal_patch_size")
    if frames is not None:
        return request.floats(request.batch * request.sequence, frames, patch, patch, channels)
    height, width = height_and_width(request)
    return request.floats(request.batch, (height // patch) * (width // patch), channels * patch * patch)


def _channels(request: InputRequest) -> int:
    channels = request.setting("num_channels", "in_channels", "in_chans", "num_input_channels", default=3)
    return int(channels)


def height_and_width(request: InputRequest) -> tuple[int, int]:
    """Return the size of an image in pixels: that of the config, else 224 x 224.

    Another if the model lists how many patches it takes (Aria), larger if it cuts its patches into windows
    and they are not a multiple (RF-DETR), and smaller if it merges patches and they are not (Idefics 3).
    """
    windows, patch = request.setting("num_windows_side", "num_windows"), request.setting("patch_size")
    height, width = _size(request)
    if isinstance(patch, int) and (merged := _merged_patches(request)) > 1:
        multiple = merged * patch
        return max(height // multiple, 1) * multiple, max(width // multiple, 1) * multiple
    if (taken := request.setting("projector_patch_to_query_dict")) and isinstance(patch, int):
        listed = {count: math.isqrt(count) * patch for count in sorted(taken)}
        count = (height // patch) * (width // patch)
        return (height, width) if count in listed else (next(iter(listed.values())),) * 2
    if not isinstance(windows, int) or not isinstance(patch, int):
        return height, width
    multiple = windows * patch
    return -(-height // multiple) * multiple, -(-width // multiple) * multiple


def _merged_patches(request: InputRequest) -> int:
    """Return the side of the squares of patches that one token of text stands for."""
    is_text = request.setting("image_token_id") is not None  # else the factor is of a picture
    factor = request.setting("scale_factor", default=1) if is_text else 1
    return factor if isinstance(factor, int) else 1


def _size(request: InputRequest) -> tuple[int, int]:
    if (ratios := request.setting("scaled_images_ratios")) is not None:  # Depth Pro
        return (int(request.config.patch_size / min(ratios)),) * 2
    if request.config.model_type == "janus_vqgan":
        side = request.config.num_patches * 2 ** (len(request.config.channel_multiplier) - 1)
        return side, side
    size: Any = (
        request.setting("image_size", "input_size", "img_size", "max_img_size", "crop_size", "resolution")
        or getattr(getattr(request.config, "prompt_encoder_config", None), "image_size", None)
        or _size_of_timm(request)
    )
    if isinstance(size, dict):
        size = (size.get("height", USUAL_SIZE), size.get("width", USUAL_SIZE))
    if isinstance(size, (list, tuple)):
        return (int(size[0]), int(size[-1]))
    return (int(size), int(size))


def _size_of_timm(request: InputRequest) -> Any:
    """Return the size of the images of a timm model that is a part of the model: no config has it."""
    found = (getattr(part, "pretrained_cfg", None) for part in request.module.modules())
    size = next((known["input_size"] for known in found if isinstance(known, dict)), (USUAL_SIZE,))
    return size[-2:]
