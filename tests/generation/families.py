"""The families of models that generation is tried with: small ones, whose tokens differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

VOCABULARY = 96
FIRST = 5
"""Smaller tokens are special."""
IMAGE_TOKEN = 4
_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_NO_SPECIAL = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
_SMALL_EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
_SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
_TRANSLATING = {
    **_SEQ2SEQ,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
    "tie_word_embeddings": False,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}


def _image(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, 3, 16, 16, generator=generator)}


def _sound(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"input_features": 3 * torch.randn(1, 8, 32, generator=generator)}


def _masked_sound(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """A sound of 24 of 32 frames, which the encoder makes 6 features of."""
    return {**_sound(generator), "feature_attention_mask": (torch.arange(32)[None] < 24).long()}


def _patches(generator: torch.Generator) -> dict[str, torch.Tensor]:
    places = torch.arange(32.0).reshape(1, 16, 2) % 7 + 1  # Row and column of each patch.
    pixels = torch.randn(1, 16, 48, generator=generator)
    return {"flattened_patches": torch.cat([places, pixels], dim=2)}


@dataclass(frozen=True)
class Family:
    """A kind of model.

    Args:
        name: The model type, with what is special about it.
        model_class: In transformers.
        config: Settings of its config.
        kind: What is special, for the table.
        gain: What the weights are multiplied with, so that scores differ.
        level: `slow`: in CI; `exhaustive`.
        parts: Configs in the config.
        inputs: What prefill takes besides text.
        image_tokens: Placeholder tokens of the image, which go before the text.
        reads_text: Whether it takes a prompt of tokens.
    """

    name: str
    model_class: str
    config: Mapping[str, Any]
    kind: str
    gain: float = 6.0
    level: str = "exhaustive"
    parts: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    inputs: Callable[[torch.Generator], dict[str, torch.Tensor]] = lambda generator: {}
    image_tokens: int = 0
    reads_text: bool = True

    @property
    def type(self) -> Any:
        return getattr(transformers, self.model_class)

    def build(self) -> nn.Module:
        """Return the model with random weights, the same in each process."""
        torch.manual_seed(0)
        config = self.type.config_class(**self.config, **{name: part() for name, part in self.parts.items()})
        model = self.type(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1 and parameter.requires_grad:  # Marian does not save its tables.
                    parameter.mul_(self.gain)
        return model

    def saved(self, folder: Path) -> nn.Module:
        """Return the model, after writing its config and weights as `save_pretrained` does."""
        model = self.build()
        model.save_pretrained(folder)
        return model


def _text(
    name: str, model_class: str, kind: str, level: str = "exhaustive", gain: float = 6.0, **more: Any
) -> Family:
    return Family(name, model_class, {**_TEXT, **_NO_SPECIAL, **more}, kind, gain, level)


FAMILIES = (
    _text("llama", "LlamaForCausalLM", "dense", "slow"),
    _text("qwen2", "Qwen2ForCausalLM", "dense"),
    _text("qwen3", "Qwen3ForCausalLM", "dense", head_dim=8),
    _text("mistral", "MistralForCausalLM", "window in every layer", "slow", sliding_window=8),
    _text(
        "gemma2",
        "Gemma2ForCausalLM",
        "window in every other layer",
        head_dim=8,
        tie_word_embeddings=False,
        sliding_window=8,
    ),
    _text(
        "gemma3",
        "Gemma3ForCausalLM",
        "window in most layers",
        "slow",
        head_dim=8,
        tie_word_embeddings=False,
        sliding_window=8,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    ),
    _text("phi3", "Phi3ForCausalLM", "dense", sliding_window=None),
    _text("cohere2", "Cohere2ForCausalLM", "window in most layers", sliding_window=8),
    _text("olmo2", "Olmo2ForCausalLM", "dense"),
    _text("granite", "GraniteForCausalLM", "dense"),
    _text(
        "gpt2",
        "GPT2LMHeadModel",
        "learned positions",
        n_embd=32,
        tie_word_embeddings=False,
        n_layer=2,
        n_head=4,
        n_positions=128,
    ),
    _text("gpt_neox", "GPTNeoXForCausalLM", "dense"),
    _text("opt", "OPTForCausalLM", "learned positions", ffn_dim=64, word_embed_proj_dim=32),
    _text(
        "bloom", "BloomForCausalLM", "positions in the scores", tie_word_embeddings=False, n_head=4, n_layer=2
    ),
    _text("falcon", "FalconForCausalLM", "one key-value head", tie_word_embeddings=False),
    _text("stablelm", "StableLmForCausalLM", "dense"),
    _text("gemma", "GemmaForCausalLM", "dense", head_dim=8, tie_word_embeddings=False),
    _text("nemotron", "NemotronForCausalLM", "dense"),
    _text(
        "exaone4",
        "Exaone4ForCausalLM",
        "window in most layers",
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    ),
    _text("phimoe", "PhimoeForCausalLM", "experts", num_local_experts=4),
    _text("olmoe", "OlmoeForCausalLM", "experts", num_experts=4, num_experts_per_tok=2),
    _text("mixtral", "MixtralForCausalLM", "experts", "slow", num_local_experts=4),
    _text("qwen3_moe", "Qwen3MoeForCausalLM", "experts", head_dim=8, num_experts=4, **_SMALL_EXPERTS),
    _text(
        "gpt_oss",
        "GptOssForCausalLM",
        "experts and windows",
        head_dim=8,
        num_local_experts=4,
        sliding_window=8,
        num_experts_per_tok=2,
    ),
    _text(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        "latent attention, experts",
        n_routed_experts=4,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        num_key_value_heads=4,
        **_SMALL_EXPERTS,
    ),
    _text("mamba", "MambaForCausalLM", "state space", state_size=8),
    _text(
        "mamba2",
        "Mamba2ForCausalLM",
        "state space",
        "slow",
        state_size=8,
        num_heads=8,
        head_dim=8,
        n_groups=1,
        chunk_size=32,
    ),
    _text("falcon_mamba", "FalconMambaForCausalLM", "state space", state_size=8),
    _text(
        "jamba",
        "JambaForCausalLM",
        "hybrid, experts",
        num_experts=2,
        mamba_d_state=8,
        mamba_dt_rank=4,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        use_mamba_kernels=False,
    ),
    _text(
        "bamba",
        "BambaForCausalLM",
        "hybrid",
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_chunk_size=32,
        attn_layer_indices=[1],
    ),
    _text(
        "zamba2",
        "Zamba2ForCausalLM",
        "hybrid, shared attention",
        num_hidden_layers=3,
        layers_block_type=["mamba", "hybrid", "mamba"],
        mamba_d_state=8,
        mamba_headdim=8,
        n_mamba_heads=8,
        mamba_ngroups=1,
        chunk_size=32,
        num_key_value_heads=4,
        num_mem_blocks=1,
        adapter_rank=4,
        use_mamba_kernels=False,
    ),
    _text(
        "falcon_h1",
        "FalconH1ForCausalLM",
        "state space and attention in each layer",
        mamba_d_ssm=64,
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_n_groups=1,
        mamba_chunk_size=32,
    ),
    _text(
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        "hybrid, experts",
        layer_types=["mamba", "attention"],
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_chunk_size=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=32,
    ),
    _text(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        "hybrid, linear attention, experts",
        head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        num_experts=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        shared_expert_intermediate_size=16,
        **_SMALL_EXPERTS,
    ),
    _text("lfm2", "Lfm2ForCausalLM", "hybrid, convolutions", "slow", layer_types=["conv", "full_attention"]),
    _text(
        "recurrent_gemma",
        "RecurrentGemmaForCausalLM",
        "recurrent",
        attention_window_size=8,
        lru_width=32,
        num_hidden_layers=3,
    ),
    Family(
        "t5",
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "eos_token_id": None,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        },
        "encoder and decoder",
        3.0,
        "slow",
    ),
    Family(
        "bart",
        "BartForConditionalGeneration",
        {
            **_SEQ2SEQ,
            "max_position_embeddings": 128,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "forced_eos_token_id": 2,
        },
        "encoder and decoder",
    ),
    Family(
        "marian",
        "MarianMTModel",
        {**_TRANSLATING, "decoder_start_token_id": 0},
        "translation; tables that no checkpoint has",
        level="slow",
    ),
    Family(
        "m2m_100",
        "M2M100ForConditionalGeneration",
        {**_TRANSLATING, "decoder_start_token_id": 2},
        "translation",
    ),
    Family(
        "mbart",
        "MBartForConditionalGeneration",
        {**_TRANSLATING, "decoder_start_token_id": 2},
        "translation",
    ),
    Family(
        "whisper",
        "WhisperForConditionalGeneration",
        {
            **_SEQ2SEQ,
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 3,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
            "tie_word_embeddings": False,
        },
        "speech to text",
        14.0,
        "slow",
        inputs=_sound,
        reads_text=False,
    ),
    Family(
        "git",
        "GitForCausalLM",
        {**_TEXT, **_NO_SPECIAL},
        "captioning",
        parts={"vision_config": lambda: _VISION},
        inputs=_image,
    ),
    Family(
        "vision_encoder_decoder",
        "VisionEncoderDecoderModel",
        {"decoder_start_token_id": 1, "pad_token_id": 0, "eos_token_id": 2},
        "captioning, from two models",
        level="slow",
        parts={
            "encoder": lambda: {"model_type": "vit", **_VISION},
            "decoder": lambda: {
                "model_type": "gpt2",
                "vocab_size": VOCABULARY,
                "n_embd": 32,
                "n_layer": 2,
                "n_head": 4,
                "n_positions": 128,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "is_decoder": True,
                "add_cross_attention": True,
                "tie_word_embeddings": False,
            },
        },
        inputs=_image,
        reads_text=False,
    ),
    Family(
        "pix2struct",
        "Pix2StructForConditionalGeneration",
        {"tie_word_embeddings": False},
        "captioning, from patches",
        parts={
            "vision_config": lambda: {
                "hidden_size": 32,
                "patch_size": 4,
                "patch_embed_hidden_size": 48,
                "d_ff": 64,
                "d_kv": 8,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "seq_len": 16,
            },
            "text_config": lambda: {
                "vocab_size": VOCABULARY,
                "hidden_size": 32,
                "d_kv": 8,
                "d_ff": 64,
                "num_layers": 2,
                "num_heads": 4,
                "decoder_start_token_id": 0,
                "pad_token_id": 0,
                "eos_token_id": 1,
            },
        },
        inputs=_patches,
        reads_text=False,
    ),
    Family(
        "paligemma",
        "PaliGemmaForConditionalGeneration",
        {"image_token_id": IMAGE_TOKEN, "projection_dim": 32, "tie_word_embeddings": False},
        "image in the text, which sees all of itself",
        parts={
            "vision_config": lambda: {
                "model_type": "siglip_vision_model",
                **_VISION,
                "vision_use_head": False,
            },
            "text_config": lambda: {"model_type": "gemma", **_TEXT, **_NO_SPECIAL, "head_dim": 8},
        },
        inputs=_image,
        image_tokens=4,
    ),
    Family(
        "llava",
        "LlavaForConditionalGeneration",
        {"image_token_id": IMAGE_TOKEN, "tie_word_embeddings": False},
        "image in the text",
        6.0,
        "slow",
        parts={
            "vision_config": lambda: transformers.CLIPVisionConfig(**_VISION, projection_dim=32),
            "text_config": lambda: transformers.LlamaConfig(**_TEXT, **_NO_SPECIAL),
        },
        inputs=_image,
        image_tokens=4,
    ),
    Family(
        "gemma3_image",
        "Gemma3ForConditionalGeneration",
        {"image_token_id": IMAGE_TOKEN, "mm_tokens_per_image": 4, "tie_word_embeddings": False},
        "image in the text, windows",
        parts={
            "vision_config": lambda: transformers.SiglipVisionConfig(**{**_VISION, "patch_size": 4}),
            "text_config": lambda: transformers.Gemma3TextConfig(
                **_TEXT,
                **_NO_SPECIAL,
                head_dim=8,
                sliding_window=8,
                layer_types=["sliding_attention", "full_attention"],
            ),
        },
        inputs=_image,
        image_tokens=4,
    ),
    Family(
        "qwen2_audio",
        "Qwen2AudioForConditionalGeneration",
        {"audio_token_index": IMAGE_TOKEN, "tie_word_embeddings": False},
        "sound in the text, with a mask",
        parts={
            "audio_config": lambda: {
                "num_mel_bins": 8,
                "d_model": 32,
                "encoder_layers": 2,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "max_source_positions": 16,
            },
            "text_config": lambda: {"model_type": "qwen2", **_TEXT, **_NO_SPECIAL},
        },
        inputs=_masked_sound,
        image_tokens=6,
    ),
    Family(
        "blip",
        "BlipForConditionalGeneration",
        {},
        "captioning",
        parts={
            "text_config": lambda: {
                **_TEXT,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "sep_token_id": 2,
                "pad_token_id": 0,
            },
            "vision_config": lambda: _VISION,
        },
        inputs=_image,
    ),
)
NAMED = {family.name: family for family in FAMILIES}
