"""Small models of diffusers with random weights, each in the layout of a published one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_UNET = {
    "sample_size": 8,
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 12,
    "attention_head_dim": 2,
    "norm_num_groups": 4,
}
_SDXL = {
    **_UNET,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 4,
    "projection_class_embeddings_input_dim": 10 + 6 * 4,
}
_VAE = {
    "sample_size": 16,
    "block_out_channels": (8, 16),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "norm_num_groups": 4,
    "layers_per_block": 1,
}
_HEADS = {"num_attention_heads": 2, "attention_head_dim": 8}

MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "sd15-unet": ("UNet2DConditionModel", _UNET),
    "sdxl-unet": ("UNet2DConditionModel", _SDXL),
    "lcm-unet": ("UNet2DConditionModel", {**_UNET, "time_cond_proj_dim": 8}),
    "upscaler-unet": (
        "UNet2DConditionModel",
        {**_UNET, "in_channels": 7, "num_class_embeds": 10},
    ),
    "kandinsky-unet": (
        "UNet2DConditionModel",
        {
            **_UNET,
            "addition_embed_type": "image",
            "encoder_hid_dim": 20,
            "encoder_hid_dim_type": "image_proj",
            "addition_embed_type_num_heads": 2,
        },
    ),
    "ddpm-unet": (
        "UNet2DModel",
        {
            "sample_size": 8,
            "block_out_channels": (8, 16),
            "layers_per_block": 1,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "norm_num_groups": 4,
            "attention_head_dim": 4,
        },
    ),
    "svd-unet": (
        "UNetSpatioTemporalConditionModel",
        {
            "sample_size": 8,
            "block_out_channels": (32, 64),
            "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
            "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
            "cross_attention_dim": 12,
            "layers_per_block": 1,
            "num_attention_heads": (2, 4),
            "projection_class_embeddings_input_dim": 3 * 32,
            "addition_time_embed_dim": 32,
        },
    ),
    "controlnet": (
        "ControlNetModel",
        {key: value for key, value in _UNET.items() if key not in ("sample_size", "up_block_types")}
        | {"conditioning_embedding_out_channels": (4, 8)},
    ),
    "flux": (
        "FluxTransformer2DModel",
        {
            "in_channels": 4,
            "num_layers": 2,
            "num_single_layers": 2,
            **_HEADS,
            "joint_attention_dim": 12,
            "pooled_projection_dim": 10,
            "axes_dims_rope": (2, 2, 4),
            "guidance_embeds": True,
        },
    ),
    "sd3": (
        "SD3Transformer2DModel",
        {
            "sample_size": 16,
            "in_channels": 4,
            "num_layers": 2,
            **_HEADS,
            "joint_attention_dim": 12,
            "caption_projection_dim": 16,
            "pooled_projection_dim": 10,
            "out_channels": 4,
            "pos_embed_max_size": 16,
        },
    ),
    "pixart": (
        "PixArtTransformer2DModel",
        {
            "sample_size": 8,
            "num_layers": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "cross_attention_dim": 24,
            "caption_channels": 12,
            "use_additional_conditions": True,
        },
    ),
    "dit": (
        "DiTTransformer2DModel",
        {"sample_size": 8, "num_layers": 2, "num_embeds_ada_norm": 10, **_HEADS, "out_channels": 8},
    ),
    "sana": (
        "SanaTransformer2DModel",
        {
            "sample_size": 8,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            **_HEADS,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 8,
            "cross_attention_dim": 16,
            "caption_channels": 12,
        },
    ),
    "cogvideox": (
        "CogVideoXTransformer3DModel",
        {
            "num_layers": 2,
            **_HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "time_embed_dim": 4,
            "text_embed_dim": 12,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 9,
            "max_text_seq_length": 8,
            "use_rotary_positional_embeddings": True,
        },
    ),
    "wan": (
        "WanTransformer3DModel",
        {
            "num_layers": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "in_channels": 4,
            "out_channels": 4,
            "text_dim": 12,
            "freq_dim": 16,
            "ffn_dim": 32,
            "cross_attn_norm": True,
        },
    ),
    "ltx": (
        "LTXVideoTransformer3DModel",
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "cross_attention_dim": 24,
            "caption_channels": 12,
        },
    ),
    "vae/encoder": ("AutoencoderKL", _VAE),
    "vae/decoder": ("AutoencoderKL", _VAE),
    "tiny-vae/encoder": (
        "AutoencoderTiny",
        {
            "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
    ),
    "tiny-vae/decoder": (
        "AutoencoderTiny",
        {
            "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
    ),
    "wan-vae/decoder": (
        "AutoencoderKLWan",
        {
            "base_dim": 4,
            "z_dim": 4,
            "dim_mult": [1, 1, 1, 1],
            "num_res_blocks": 1,
            "temperal_downsample": [False, True, True],
            "latents_mean": [0.0] * 4,
            "latents_std": [1.0] * 4,
        },
    ),
}
"""Class and config by name; after a `/` the half that is exported."""


def saved_model(name: str, folder: Path) -> Any:
    """Return a small model, with its config and weights saved to the folder.

    Weights that start as zeros, of gates and last layers, are drawn too, as they hide what is before them.
    """
    import diffusers

    class_name, settings = MODELS[name]
    torch.manual_seed(0)
    model = getattr(diffusers, class_name).from_config(dict(settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.05)
    model.save_pretrained(folder)
    return model


def saved_pipeline(folder: Path) -> None:
    """Write a small pipeline as `save_pretrained` does: a UNet, a VAE, CLIP and T5 as text encoders."""
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    saved_model("sd15-unet", folder / "unet")
    saved_model("vae/decoder", folder / "vae")
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    clip = CLIPTextConfig(
        **sizes, vocab_size=50, intermediate_size=16, max_position_embeddings=16, eos_token_id=2
    )
    CLIPTextModel(clip).save_pretrained(folder / "text_encoder")
    t5 = T5Config(vocab_size=50, d_model=12, d_kv=6, d_ff=16, num_layers=2, num_heads=2)
    T5EncoderModel(t5).save_pretrained(folder / "text_encoder_2")
    index = {
        "_class_name": "StableDiffusionPipeline",
        "_diffusers_version": "0.42.1",
        "scheduler": ["diffusers", "PNDMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "safety_checker": [None, None],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
