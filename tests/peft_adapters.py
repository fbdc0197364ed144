"""Small models of transformers and LoRA adapters for them, with weights that show: peft begins with zeros."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "vocab_size": 32}
LLAMA = {**SIZES, "num_hidden_layers": 2, "num_key_value_heads": 2}
BASES: dict[str, tuple[str, Any]] = {
    "llama": ("LlamaForCausalLM", transformers.LlamaConfig(**LLAMA)),
    "wide": ("LlamaForCausalLM", transformers.LlamaConfig(**{**LLAMA, "hidden_size": 32})),
    "half": ("LlamaForCausalLM", transformers.LlamaConfig(**LLAMA, dtype="bfloat16")),
    "tied": ("LlamaForCausalLM", transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True)),
    "gpt2": (
        "GPT2LMHeadModel",
        transformers.GPT2Config(
            n_embd=16, n_layer=2, n_head=4, vocab_size=32, n_positions=32, bos_token_id=0, eos_token_id=1
        ),
    ),
    "bert": (
        "BertForSequenceClassification",
        transformers.BertConfig(**SIZES, num_hidden_layers=2, num_labels=3),
    ),
    "t5": (
        "T5ForConditionalGeneration",
        transformers.T5Config(
            d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, vocab_size=32, decoder_start_token_id=0
        ),
    ),
    "mixtral": ("MixtralForCausalLM", transformers.MixtralConfig(**LLAMA, num_local_experts=4)),
}


def loaded(base: Path) -> Any:
    """The model of a folder, in eval mode."""
    name = next(name for name in BASES if base.name == name)
    return getattr(transformers, BASES[name][0]).from_pretrained(base).eval()


def saved_base(folder: Path, name: str) -> Path:
    """Write a model with loud weights; return its folder."""
    kind, config = BASES[name]
    model = getattr(transformers, kind)(config)
    _fill(model.named_parameters(), seed=0)
    model.to(config.dtype or torch.float32).save_pretrained(folder / name)
    return folder / name


def saved_adapter(folder: Path, base: Path, *, seed: int = 1, **settings: Any) -> Path:
    """Write an adapter with loud weights for the model of a folder; return its own."""
    import peft

    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": "all-linear", **settings})
    model = peft.get_peft_model(loaded(base), config)
    _fill(((name, value) for name, value in model.named_parameters() if value.requires_grad), seed=seed)
    model.save_pretrained(folder)
    return folder


def adapted(base: Path, adapter: Path, *, is_merged: bool = False) -> nn.Module:
    """What peft makes of the two, in eval mode."""
    import peft

    model: Any = peft.PeftModel.from_pretrained(loaded(base), adapter)
    return (model.merge_and_unload() if is_merged else model).eval()


def _fill(parameters: Any, *, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, value in parameters:
            noise = 0.3 * torch.randn(value.shape)
            value.copy_(value + noise if "norm" in name or "magnitude" in name else noise)
