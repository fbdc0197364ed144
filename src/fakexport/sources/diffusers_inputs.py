"""Example inputs of a diffusers model, derived from its config and the signature of its `forward`.

Seen on diffusers 0.42.1.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fakexport.sources.diffusers_expressions import never, special_builder
from fakexport.sources.diffusers_sizes import (
    TEXT_TOKENS,
    WITHOUT_SIZE,
    has_own_size,
    latent_shape,
    layout,
    patches,
    sides,
    text_width,
)
from fakexport.sources.input_request import InputRequest
from fakexport.sources.source import ExampleInputs
from fakexport.sources.source_error import SourceError

_NEVER = re.compile(r"return_dict|generator|kv_cache|attention_kwargs|skip_layers")
"""Settings of a call, and state that a pipeline keeps between calls."""
_ADDS_ONLY = re.compile(r"mask|residual|block_samples")
"""Inputs that have no weights of their own."""
_NUMBERS = (
    "img_shapes",
    "shape_list",
    "num_frames",
    "height",
    "width",
    "scale",
    "scale_factor",
    "use_cross_timestep",
    "control_type_idx",
    "cross_attention_kwargs",
)
"""Inputs that are values of Python."""
_OPTIONAL = "it is optional, and the config does not say how large it is"


def derive_inputs(
    module: nn.Module, device: str, dtype: torch.dtype | None, *, batch: int = 2
) -> ExampleInputs:
    """Return keyword inputs of one forward pass: a batch of 2, and 77 tokens of text if not told otherwise.

    Given is what `forward` requires, and what the config says that the model is conditioned on. What is
    optional otherwise is left out, and named.

    Args:
        dtype: Dtype of the floating-point inputs, but for most time steps and guidance, which are float32;
            None: that of the module's parameters.
    Raises:
        SourceError: The module requires an input that its config does not determine.
    """
    if type(module).forward is nn.Module.forward:
        raise SourceError(f"{type(module).__name__} has no forward of its own")
    own = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
    tokens = InputRequest(module, device, dtype or own).setting(*_TEXT_LENGTHS, default=TEXT_TOKENS)
    request = InputRequest(module, device, dtype or own, batch, int(tokens))
    if kept := [name for name in request.parameters if _requires(request, name) and _NEVER.search(name)]:
        raise SourceError(
            f"{type(module).__name__} requires {kept[0]!r}, which a pipeline keeps between calls: write a "
            "factory that returns the model and its inputs"
        )
    kwargs: dict[str, Any] = {}
    left_out, missing = [], []
    for name, parameter in request.parameters.items():
        is_required = parameter.default is inspect.Parameter.empty
        builder = _builder(request, name)
        value = None if builder is None else builder(request)
        if value is not None:
            kwargs[name] = value
        elif is_required and builder is encoded_text and takes_image_for_text(request):
            kwargs[name] = None
        elif is_required:
            missing.append(name)
        elif (
            parameter.default is None
            and (builder is None or builder in _LEFT_OUT)
            and not _NEVER.search(name)
        ):
            left_out.append(name)
    if missing:
        raise SourceError(_underivable(module, missing))
    if not kwargs:
        raise SourceError(_underivable(module, left_out or ["an input"]))
    return ExampleInputs(
        kwargs=kwargs,
        assumptions=tuple(_notes(request, kwargs, left_out)),
        omitted={name: _OPTIONAL for name in left_out if _may_be_missed(request, name)},
    )


def _may_be_missed(request: InputRequest, name: str) -> bool:
    """Return whether weights that the program lacks may be due to an input that is left out."""
    return _builder(request, name) is not never and not _ADDS_ONLY.search(name)


def _underivable(module: nn.Module, names: Sequence[str]) -> str:
    how = f"use --input {names[0]}=DTYPE[DIMS]"
    if len(names) > 1:
        how = (
            "use --input NAME=DTYPE[DIMS] for each, or write a factory that returns the model and its inputs"
        )
    return (
        f"{type(module).__name__} requires {', '.join(map(repr, names))}, which its config does not "
        f"determine: {how}"
    )


def _notes(request: InputRequest, kwargs: Mapping[str, Any], left_out: Sequence[str]) -> list[str]:
    notes = []
    if not has_own_size(request) and (size := _assumed_size(request, kwargs)) is not None:
        notes.append(f"its config names no size: {size}")
    if "time_ids" in kwargs.get("added_cond_kwargs", ()):
        pooled, ids = (kwargs["added_cond_kwargs"][name].shape[-1] for name in ("text_embeds", "time_ids"))
        notes.append(f"added_cond_kwargs: a pooled text of width {pooled} and {ids} time ids")
    fixed = [name for name in _NUMBERS if name in kwargs]
    if fixed:
        notes.append(f"{', '.join(fixed)}: values of Python, fixed in the program")
    if left_out:
        notes.append(f"optional inputs that the program does not take: {', '.join(left_out)}")
    return notes


def _assumed_size(request: InputRequest, kwargs: Mapping[str, Any]) -> str | None:
    """Return what is assumed of the main input, the first one; None where it has no size but the batch."""
    name = next(iter(kwargs), "")
    if _builder(request, name) is _latents:
        return WITHOUT_SIZE[layout(request)]
    main = kwargs.get(name)
    first = main[0] if isinstance(main, list) else main
    if not isinstance(first, torch.Tensor) or first.dim() < 3:
        return None
    each = " each" if first is not main else ""
    return f"{name} of {list(first.shape)}{each} assumed"


def _builder(request: InputRequest, name: str) -> Callable[[InputRequest], Any] | None:
    return special_builder(type(request.module).__name__, name) or _BUILDERS.get(name)


def _latents(request: InputRequest) -> torch.Tensor:
    return request.floats(*latent_shape(request))


def _steps(request: InputRequest) -> torch.Tensor:
    """Return time steps: whole numbers of a model that was trained with a table of them, else float32."""
    name = type(request.module).__name__
    if name.startswith("HunyuanDiT"):
        return request.floats(request.batch)
    if name.startswith(_WHOLE_STEPS):
        return request.ids(request.batch)
    return torch.zeros(request.batch, device=request.device)


def _present(request: InputRequest) -> torch.Tensor:
    return request.ids(request.batch, request.sequence, value=1).bool()


def _text_mask(request: InputRequest) -> torch.Tensor | None:
    is_unet = "UNet" in type(request.module).__name__ or "ControlNet" in type(request.module).__name__
    is_old = type(request.module).__name__ in ("Transformer2DModel", "DreamLiteTransformer2DModel")
    return (
        None
        if (is_unet or is_old) and not _requires(request, "encoder_attention_mask")
        else _present(request)
    )


def _required_mask(request: InputRequest) -> torch.Tensor | None:
    return _present(request) if _requires(request, "attention_mask") else None


def _requires(request: InputRequest, name: str) -> bool:
    parameter = request.parameters.get(name)
    return parameter is not None and parameter.default is inspect.Parameter.empty


_WHOLE_STEPS = (
    *("UNet", "ControlNet", "AudioLDM2", "I2VGenXL", "SparseControlNet", "Kandinsky3", "DreamLite", "DiT"),
    *("PixArt", "CogVideoX", "ConsisID", "Allegro", "Latte", "CogView", "PriorTransformer", "Transformer2D"),
    *("Wan", "SkyReels", "ChronoEdit", "UniDiffuser"),
)
_TEXT_LENGTHS = ("max_text_seq_length", "text_len")


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


_BUILDERS: Mapping[str, Callable[[InputRequest], Any]] = MappingProxyType(
    {
        "sample": _latents,
        "hidden_states": _latents,
        "timestep": _steps,
        "timesteps": _steps,
        "encoder_hidden_states": encoded_text,
        "encoder_attention_mask": _text_mask,
        "attention_mask": _required_mask,
        "class_labels": class_labels,
        "added_cond_kwargs": added_conditions,
        "image_rotary_emb": rotary_embedding,
    }
)

_LEFT_OUT = (_text_mask, _required_mask, encoded_text, never)
