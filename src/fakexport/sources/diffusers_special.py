"""Inputs that one class of diffusers, or one family, has by a name that others use differently.

Seen on diffusers 0.42.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from fakexport.sources.diffusers_builders import (
    TEXT,
    Builder,
    floats,
    ids,
    like_latents,
    list_of,
    never,
    positions,
    present,
    steps,
    steps_in_dtype,
)
from fakexport.sources.diffusers_packed import PACKED
from fakexport.sources.diffusers_sizes import (
    FRAMES,
    PACKED_SIDE,
    latent_shape,
    patches,
    sides,
    text_width,
)
from fakexport.sources.diffusers_sound import SOUNDS
from fakexport.sources.diffusers_video import VIDEOS
from fakexport.sources.input_request import InputRequest


def special_builder(model_class: str, name: str) -> Builder | None:
    """Return what builds an input of a class, if the class has its own way."""
    for tables in (_OF_CLASS, SOUNDS, VIDEOS, PACKED):
        if (builder := tables.get(model_class, {}).get(name)) is not None:
            return builder
    return None


def _steps_of_frames(request: InputRequest) -> torch.Tensor:
    return torch.zeros(request.batch, FRAMES, device=request.device)


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


def _guidance_in_dtype(request: InputRequest) -> torch.Tensor | None:
    return request.floats(request.batch) if request.setting("guidance_embeds", default=False) else None


def _xs_sample(request: InputRequest) -> torch.Tensor:
    """Return the latents: the config names the width of the conditioning alone."""
    module: Any = request.module
    return request.floats(request.batch, module.base_conv_in.in_channels, *sides(request))


def _xs_hint(request: InputRequest) -> torch.Tensor:
    module: Any = request.module
    blocks = request.setting("ctrl_conditioning_embedding_out_channels")
    height, width = (side * 2 ** (len(blocks) - 1) for side in sides(request))
    return request.floats(request.batch, module.controlnet_cond_embedding.conv_in.in_channels, height, width)


def _lumina_rotary(request: InputRequest) -> torch.Tensor:
    """Return the complex rotation of each patch, of images as large as the pipeline foresees."""
    width = int(request.setting("hidden_size")) // int(request.setting("num_attention_heads"))
    shape = (_LUMINA_SIDE, _LUMINA_SIDE, width // 2)
    return torch.ones(shape, device=request.device, dtype=torch.complex64)


def _lumina_attention(request: InputRequest) -> dict[str, int]:
    """Return by what the pipeline scales attention: the patches of an image of the usual size."""
    side = int(request.setting("sample_size")) * 8 // 16
    return {"base_sequence_length": side**2}


def _text_of_layers(request: InputRequest) -> torch.Tensor:
    """Return the text as each layer of the language model encodes it, up to the last one that is read."""
    layers = 1 + max(request.setting("llama_layers"))
    width = int(request.setting("caption_channels")[1])
    return request.floats(layers, request.batch, request.sequence, width)


def _text_of_t5(request: InputRequest) -> torch.Tensor:
    return request.floats(request.batch, request.sequence, int(request.setting("caption_channels")[0]))


def _one_kind_of_control(request: InputRequest) -> torch.Tensor:
    """Return which kinds of control there are, as a row of zeros and ones for each item: the first kind."""
    kinds = positions(request, int(request.setting("num_control_type")))
    return (kinds == 0).to(request.dtype).expand(request.batch, -1).clone()


def _text_of_each_bundle(request: InputRequest) -> torch.Tensor:
    """Return the text for the resampler, and for each layer that reads it."""
    bundles = 1 + len(request.setting("injection_layer_ids"))
    return request.floats(request.batch, bundles, request.sequence, int(request.setting("cap_feat_dim")))


# Of `LuminaPipeline`.
_LUMINA_SIDE = 384
_T5 = {
    "encoder_hidden_states_t5": floats("text_len_t5", "cross_attention_dim_t5"),
    "text_embedding_mask": ids(TEXT, value=1),
    "text_embedding_mask_t5": ids("text_len_t5", value=1),
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
        "FluxControlNetModel": {"controlnet_cond": like_latents, "controlnet_mode": _mode},
        "QwenImageControlNetModel": {"controlnet_cond": _qwen_condition},
        "SanaControlNetModel": {"controlnet_cond": like_latents},
        "HunyuanDiT2DModel": _T5,
        "HunyuanDiT2DControlNetModel": {"controlnet_cond": like_latents, **_T5},
        "HunyuanImageTransformer2DModel": {
            **_SECOND,
            "timestep": steps_in_dtype,
            "guidance": _guidance_in_dtype,
        },
        "HunyuanVideo15Transformer3DModel": {**_SECOND, "timestep": steps_in_dtype},
        "LTXVideoTransformer3DModel": {"video_coords": _coordinates},
        "UNetMotionModel": {"encoder_hidden_states": _for_each_frame},
        "UNetSpatioTemporalConditionModel": {
            "encoder_hidden_states": floats(1, "cross_attention_dim"),
            "added_time_ids": floats(3),
        },
        "UVit2DModel": {
            "input_ids": _codebook_ids,
            "encoder_hidden_states": floats(TEXT, "encoder_hidden_size"),
            "pooled_text_emb": floats("cond_embed_dim"),
            "micro_conds": floats(5),
        },
        "StableCascadeUNet": {
            "timestep_ratio": steps_in_dtype,
            "clip_text_pooled": _cascade("clip_text_pooled_in_channels", 1),
            "clip_text": _cascade("clip_text_in_channels", 77),
            "clip_img": _cascade("clip_image_in_channels", 1),
            "effnet": _effnet,
        },
        "PriorTransformer": {
            "hidden_states": floats("embedding_dim"),
            "proj_embedding": _prior_embedding,
            "encoder_hidden_states": _prior_text,
        },
        "WanVACETransformer3DModel": {
            "control_hidden_states": _control_latents,
            "control_hidden_states_scale": _control_scale,
        },
        "ZImageTransformer2DModel": {
            "x": list_of("in_channels", 1, 64, 64),
            "t": steps,
            "cap_feats": list_of(TEXT, "cap_feat_dim"),
        },
        "GlmImageTransformer2DModel": {
            "prior_token_id": _prior_tokens,
            "prior_token_drop": lambda request: _prior_tokens(request).bool(),
        },
        "ErnieImageTransformer2DModel": {
            "text_bth": floats(TEXT, "text_in_dim"),
            "text_lens": lambda request: request.ids(request.batch, value=request.sequence),
        },
        "BriaFiboTransformer2DModel": {"text_encoder_layers": _text_of_each_layer},
        "BriaFibo2Transformer2DModel": {
            "encoder_hidden_states": _text_of_each_bundle,
            "encoder_attention_mask": present(TEXT),
        },
        "ControlNetUnionModel": {
            "controlnet_cond": lambda request: [_hint(request)],
            "control_type": _one_kind_of_control,
            "control_type_idx": lambda request: [0],
        },
        "LuminaNextDiT2DModel": {
            "encoder_mask": ids(TEXT, value=1),
            "image_rotary_emb": _lumina_rotary,
            "cross_attention_kwargs": _lumina_attention,
        },
        "HiDreamImageTransformer2DModel": {
            "encoder_hidden_states_t5": _text_of_t5,
            "encoder_hidden_states_llama3": _text_of_layers,
            **dict.fromkeys(("img_ids", "img_sizes"), never),
        },
        "UNetControlNetXSModel": {"sample": _xs_sample, "controlnet_cond": _xs_hint},
        "Ideogram4PromptEnhancerHead": {"hidden_states": floats(TEXT, "hidden_size")},
        "AnimaTextConditioner": {
            "source_hidden_states": floats(TEXT, "source_dim"),
            "target_input_ids": ids(TEXT),
            "target_attention_mask": ids(TEXT, value=1),
            "source_attention_mask": ids(TEXT, value=1),
        },
        "I2VGenXLUNet": {
            "fps": ids(),
            "image_latents": like_latents,
            "image_embeddings": floats("cross_attention_dim"),
        },
        "Kandinsky3UNet": {"encoder_attention_mask": ids(TEXT, value=1)},
        "AnyFlowTransformer3DModel": {"timestep": _steps_of_frames, "r_timestep": _steps_of_frames},
        "CLIPImageProjection": {"x": floats("hidden_size")},
        "ReduxImageEncoder": {"x": floats(729, "redux_dim")},
        "T2IAdapter": {"x": floats("in_channels", 512, 512)},
    }
)
