"""Small models of diffusers with random weights, each in the layout of a published one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.diffusers_classes import MODELS


def saved_model(name: str, folder: Path) -> Any:
    """Return a small model, with its config and weights saved to the folder.

    Weights that start as zeros, of gates and last layers, are drawn too, as they hide what is before them.
    """
    import diffusers

    torch.manual_seed(0)
    model = getattr(diffusers, MODELS[name]["class"]).from_config(dict(MODELS[name]["settings"])).eval()
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
