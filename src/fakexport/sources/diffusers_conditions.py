"""What a diffusers model is conditioned on, as its config says: classes, added conditions, rotary tables."""

from __future__ import annotations

from typing import Any

import torch

from fakexport.sources.diffusers_sizes import patches, sides, text_width
from fakexport.sources.input_request import InputRequest

_TIME_IDS = (6, 5)
_POOLED_WIDTH = 1280


def class_labels(request: InputRequest) -> torch.Tensor | None:
    """Return the classes that a model is conditioned on; None if it is not."""
    kind = request.setting("class_embed_type")
    width = request.setting("projection_class_embeddings_input_dim")
    if kind in ("projection", "simple_projection") and width is not None:
        return request.floats(request.batch, int(width))
    if kind == "identity":
        return request.floats(request.batch, _time_width(request))
    if kind == "timestep":
        return request.ids(request.batch)
    is_counted = request.setting("num_class_embeds") is not None
    is_dit = type(request.module).__name__ == "DiTTransformer2DModel"
    return request.ids(request.batch) if is_counted or is_dit else None


def added_conditions(request: InputRequest) -> dict[str, torch.Tensor] | None:
    """Return `added_cond_kwargs`; None if the config asks for none."""
    found: dict[str, torch.Tensor] = {}
    kind, batch = request.setting("addition_embed_type"), request.batch
    if kind == "text_time":
        pooled, ids = _text_time(request)
        found = {"text_embeds": request.floats(batch, pooled), "time_ids": request.floats(batch, ids)}
    elif kind in ("image", "image_hint", "text_image"):
        name = "cross_attention_dim" if kind == "text_image" else "encoder_hid_dim"
        found = {"image_embeds": request.floats(batch, int(request.setting(name)))}
    if kind == "image_hint":
        height, width = sides(request)
        found["hint"] = request.floats(batch, 3, height * 8, width * 8)
    if request.setting("encoder_hid_dim_type") in ("image_proj", "text_image_proj"):
        of_text = request.setting("encoder_hid_dim_type") == "text_image_proj"
        name = "cross_attention_dim" if of_text else "encoder_hid_dim"
        found.setdefault("image_embeds", request.floats(batch, int(request.setting(name))))
    if getattr(request.module, "use_additional_conditions", False):
        found = {"resolution": request.floats(batch, 2), "aspect_ratio": request.floats(batch, 1)}
    return found or None


def rotary_embedding(request: InputRequest) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the cosines and sines that a pipeline computes; None where the model needs none."""
    name = type(request.module).__name__
    is_video = name.startswith(("CogVideoX", "ConsisID"))
    if is_video and not request.setting("use_rotary_positional_embeddings", default=False):
        return None
    if not is_video and not name.startswith("HunyuanDiT2D"):
        return None
    frames, rows, columns = patches(request)
    shape = (frames * rows * columns, int(request.setting("attention_head_dim")))
    cosines = torch.ones(shape, device=request.device)
    return cosines, torch.zeros_like(cosines)


def image_embedding(request: InputRequest) -> torch.Tensor | None:
    """Return the embedded image of an image-to-video model; None if it takes none."""
    width = request.setting("image_dim", "image_embed_dim")
    if width is None:
        return None
    tokens = 729 if request.setting("image_embed_dim") is not None else 257
    return request.floats(request.batch, tokens, int(width))


def _text_time(request: InputRequest) -> tuple[int, int]:
    """Return the width of the pooled text, and the number of time ids next to it.

    The config names the sum of both alone. SDXL has 1280 and 6 ids, its refiner 1280 and 5.
    """
    total = int(request.setting("projection_class_embeddings_input_dim"))
    each = int(request.setting("addition_time_embed_dim"))
    for ids in _TIME_IDS:
        if total - ids * each == _POOLED_WIDTH:
            return _POOLED_WIDTH, ids
    return total - _TIME_IDS[0] * each, _TIME_IDS[0]


def _time_width(request: InputRequest) -> int:
    width: Any = request.setting("time_embedding_dim")
    return int(width) if width is not None else 4 * int(request.setting("block_out_channels")[0])


def takes_image_for_text(request: InputRequest) -> bool:
    """Return whether an embedded image takes the place of the text (Kandinsky 2.2)."""
    return bool(request.setting("encoder_hid_dim_type") == "image_proj")


def encoded_text(request: InputRequest) -> torch.Tensor | None:
    """Return the embedded text; None where the config names no width, or that an image takes its place."""
    if takes_image_for_text(request):
        return None
    of_text = request.setting("encoder_hid_dim_type") in ("text_proj", "text_image_proj")
    width = int(request.setting("encoder_hid_dim")) if of_text else text_width(request)
    return None if width is None else request.floats(request.batch, request.sequence, width)
