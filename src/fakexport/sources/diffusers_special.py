"""Inputs that one class of diffusers, or one family, has by a name that others use differently.

Seen on diffusers 0.42.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from fakexport.sources.diffusers_sizes import (
    FRAMES,
    PACKED_SIDE,
    latent_shape,
    patches,
    sides,
    text_width,
)
from fakexport.sources.input_request import InputRequest

Builder = Callable[[InputRequest], Any]
TEXT = "the number of text tokens"


def special_builder(model_class: str, name: str) -> Builder | None:
    """Return what builds an input of a class, if the class has its own way."""
    return _OF_CLASS.get(model_class, {}).get(name)


def _floats(*dims: int | str) -> Builder:
    """Return a builder of a tensor: a batch of these sizes, each a number or a name of the config."""
    return lambda request: request.floats(request.batch, *(_size(request, dim) for dim in dims))


def _ids(*dims: int | str, value: int = 0) -> Builder:
    return lambda request: request.ids(request.batch, *(_size(request, dim) for dim in dims), value=value)


def _size(request: InputRequest, dim: int | str) -> int:
    if isinstance(dim, int):
        return dim
    return request.sequence if dim == TEXT else int(request.setting(dim))


def _steps(request: InputRequest) -> torch.Tensor:
    return torch.zeros(request.batch, device=request.device)


def _steps_of_frames(request: InputRequest) -> torch.Tensor:
    return torch.zeros(request.batch, FRAMES, device=request.device)


def _like_latents(request: InputRequest) -> torch.Tensor:
    return request.floats(*latent_shape(request))


def _hint(request: InputRequest) -> torch.Tensor:
    """Return the image that a ControlNet of Stable Diffusion takes: each block but the first halves it."""
    blocks = request.setting("conditioning_embedding_out_channels", default=(0, 0, 0, 0))
    height, width = (side * 2 ** (len(blocks) - 1) for side in sides(request))
    return request.floats(
        request.batch, int(request.setting("conditioning_channels", default=3)), height, width
    )


def _sd3_condition(request: InputRequest) -> torch.Tensor:
    batch, channels, *size = latent_shape(request)
    more = int(request.setting("extra_conditioning_channels", default=0))
    return request.floats(batch, channels + more, *size)


def _qwen_condition(request: InputRequest) -> torch.Tensor:
    batch, patches, channels = latent_shape(request)
    return request.floats(
        batch, patches, channels + int(request.setting("extra_condition_channels", default=0))
    )


def _mode(request: InputRequest) -> torch.Tensor | None:
    return None if request.setting("num_mode") is None else request.ids(request.batch, 1)


def _coordinates(request: InputRequest) -> torch.Tensor:
    """Return frame, row and column of each patch of one frame, in place of three numbers of Python."""
    places = torch.arange(PACKED_SIDE**2, device=request.device)
    axes = (torch.zeros_like(places), places // PACKED_SIDE, places % PACKED_SIDE)
    return torch.stack(axes).float().expand(request.batch, -1, -1).clone()


def _sound_rotary(request: InputRequest) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (latent_shape(request)[-1] + 1, int(request.setting("attention_head_dim")) // 2)
    cosines = torch.ones(shape, device=request.device)
    return cosines, torch.zeros_like(cosines)


def _prior_tokens(request: InputRequest) -> torch.Tensor:
    _, rows, columns = patches(request)
    return request.ids(request.batch, rows * columns)


def _text_of_each_layer(request: InputRequest) -> list[torch.Tensor]:
    count = int(request.setting("num_layers")) + int(request.setting("num_single_layers"))
    width = int(request.setting("text_encoder_dim"))
    return [request.floats(request.batch, request.sequence, width) for _ in range(count)]


def _for_each_frame(request: InputRequest) -> torch.Tensor | None:
    """Return the text once for each frame, as the pipelines of motion adapters repeat it."""
    width = text_width(request)
    return None if width is None else request.floats(request.batch * FRAMES, request.sequence, width)


def _list_of(*dims: int | str) -> Builder:
    """Return a builder of a list of tensors, one for each item of the batch."""
    return lambda request: [
        request.floats(*(_size(request, dim) for dim in dims)) for _ in range(request.batch)
    ]


def _cascade(name: str, *shape: int) -> Builder:
    def build(request: InputRequest) -> torch.Tensor | None:
        width = request.setting(name)
        return None if width is None else request.floats(request.batch, *shape, int(width))

    return build


def _effnet(request: InputRequest) -> torch.Tensor | None:
    width = request.setting("effnet_in_channels")
    return None if width is None else request.floats(request.batch, int(width), 16, 16)


def _codebook_ids(request: InputRequest) -> torch.Tensor:
    return request.ids(request.batch, *sides(request))


def _control_latents(request: InputRequest) -> torch.Tensor:
    batch, _, *size = latent_shape(request)
    return request.floats(batch, int(request.setting("vace_in_channels")), *size)


def _control_scale(request: InputRequest) -> torch.Tensor:
    return torch.ones(len(request.setting("vace_layers")), device=request.device, dtype=request.dtype)


def _prior_text(request: InputRequest) -> torch.Tensor | None:
    is_taken = request.setting("encoder_hid_proj_type") is not None
    count, width = request.setting("num_embeddings"), request.setting("embedding_dim")
    return request.floats(request.batch, int(count), int(width)) if is_taken else None


def _prior_embedding(request: InputRequest) -> torch.Tensor:
    return request.floats(request.batch, int(request.setting("embedding_proj_dim", "embedding_dim")))


def _second_text(request: InputRequest) -> torch.Tensor | None:
    width = request.setting("text_embed_2_dim")
    return None if width is None else request.floats(request.batch, request.sequence, int(width))


def _second_mask(request: InputRequest) -> torch.Tensor | None:
    is_taken = request.setting("text_embed_2_dim") is not None
    return request.ids(request.batch, request.sequence, value=1).bool() if is_taken else None


_T5 = {
    "encoder_hidden_states_t5": _floats("text_len_t5", "cross_attention_dim_t5"),
    "text_embedding_mask": _ids(TEXT, value=1),
    "text_embedding_mask_t5": _ids("text_len_t5", value=1),
    "image_meta_size": lambda request: (
        request.floats(request.batch, 6) if request.setting("use_style_cond_and_image_meta_size") else None
    ),
    "style": lambda request: (
        request.ids(request.batch) if request.setting("use_style_cond_and_image_meta_size") else None
    ),
}
_SECOND = {"encoder_hidden_states_2": _second_text, "encoder_attention_mask_2": _second_mask}

_OF_CLASS: Mapping[str, Mapping[str, Builder]] = MappingProxyType(
    {
        "ControlNetModel": {"controlnet_cond": _hint},
        "SD3ControlNetModel": {"controlnet_cond": _sd3_condition},
        "FluxControlNetModel": {"controlnet_cond": _like_latents, "controlnet_mode": _mode},
        "QwenImageControlNetModel": {"controlnet_cond": _qwen_condition},
        "SanaControlNetModel": {"controlnet_cond": _like_latents},
        "HunyuanDiT2DModel": _T5,
        "HunyuanDiT2DControlNetModel": {"controlnet_cond": _like_latents, **_T5},
        "HunyuanImageTransformer2DModel": _SECOND,
        "HunyuanVideo15Transformer3DModel": _SECOND,
        "LTXVideoTransformer3DModel": {"video_coords": _coordinates},
        "UNetMotionModel": {"encoder_hidden_states": _for_each_frame},
        "UNetSpatioTemporalConditionModel": {
            "encoder_hidden_states": _floats(1, "cross_attention_dim"),
            "added_time_ids": _floats(3),
        },
        "UVit2DModel": {
            "input_ids": _codebook_ids,
            "encoder_hidden_states": _floats(TEXT, "encoder_hidden_size"),
            "pooled_text_emb": _floats("cond_embed_dim"),
            "micro_conds": _floats(5),
        },
        "StableAudioDiTModel": {
            "global_hidden_states": _floats(1, "global_states_input_dim"),
            "rotary_embedding": _sound_rotary,
        },
        "StableCascadeUNet": {
            "timestep_ratio": _steps,
            "clip_text_pooled": _cascade("clip_text_pooled_in_channels", 1),
            "clip_text": _cascade("clip_text_in_channels", 77),
            "clip_img": _cascade("clip_image_in_channels", 1),
            "effnet": _effnet,
        },
        "PriorTransformer": {
            "hidden_states": _floats("embedding_dim"),
            "proj_embedding": _prior_embedding,
            "encoder_hidden_states": _prior_text,
        },
        "WanVACETransformer3DModel": {
            "control_hidden_states": _control_latents,
            "control_hidden_states_scale": _control_scale,
        },
        "ZImageTransformer2DModel": {
            "x": _list_of("in_channels", 1, 64, 64),
            "t": _steps,
            "cap_feats": _list_of(TEXT, "cap_feat_dim"),
        },
        "GlmImageTransformer2DModel": {
            "prior_token_id": _prior_tokens,
            "prior_token_drop": lambda request: _prior_tokens(request).bool(),
        },
        "ErnieImageTransformer2DModel": {
            "text_bth": _floats(TEXT, "text_in_dim"),
            "text_lens": lambda request: request.ids(request.batch, value=request.sequence),
        },
        "BriaFiboTransformer2DModel": {"text_encoder_layers": _text_of_each_layer},
        "I2VGenXLUNet": {
            "fps": _ids(),
            "image_latents": _like_latents,
            "image_embeddings": _floats("cross_attention_dim"),
        },
        "Kandinsky3UNet": {"encoder_attention_mask": _ids(TEXT, value=1)},
        "AnyFlowTransformer3DModel": {"timestep": _steps_of_frames, "r_timestep": _steps_of_frames},
        "CLIPImageProjection": {"x": _floats("hidden_size")},
        "ReduxImageEncoder": {"x": _floats(729, "redux_dim")},
        "T2IAdapter": {"x": _floats("in_channels", 512, 512)},
    }
)
