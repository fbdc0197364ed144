"""Small models of transformers with a tensor parallel plan, one per family."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

BASE = {
    "vocab_size": 101,  # Divided by no degree: embedding ranges and gathered logits are uneven.
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 99,
    "use_cache": False,
}
_HEADS = {"head_dim": 16}
_LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 8,
}
_GROUPED_EXPERTS = {
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
}
_BOTH_MASKS = ["sliding_attention", "full_attention"]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 16, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "qwen3": _HEADS,
    "mistral": _HEADS,
    "gemma2": _HEADS,
    "gemma3_text": _HEADS,
    "mixtral": {"num_local_experts": 4, "head_dim": 16},
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 32, "head_dim": 16, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 16, "layer_types": _BOTH_MASKS},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {},
    "glm": _HEADS,
    "cohere": {},
    "granite": {},
    "deepseek_v3": _LATENT | _GROUPED_EXPERTS,
    "eurobert": {"mask_token_id": 1},  # An encoder.
}


def _made(family: str, changes: dict[str, Any]) -> nn.Module:
    import transformers

    config = transformers.AutoConfig.for_model(family, **{**BASE, **FAMILIES[family], **changes})
    head = "MaskedLM" if family == "eurobert" else "CausalLM"
    model: nn.Module = getattr(transformers, f"AutoModelFor{head}").from_config(config).eval()
    return model


def small_model(family: str, **changes: Any) -> nn.Module:
    """Return a model whose parameters are all random: norms and biases too."""
    torch.manual_seed(0)
    model = _made(family, changes)
    with torch.no_grad():
        for weight in model.parameters():
            is_vector = weight.ndim == 1
            nn.init.normal_(weight, mean=0.3 if is_vector else 0.0, std=0.3 if is_vector else 0.15)
    return model


def factory_of(family: str, **changes: Any) -> Callable[[], tuple[nn.Module, tuple[torch.Tensor]]]:
    """Return what `fakexport.export` takes: the model with inputs of 2 x 7 tokens."""
    return lambda: (_made(family, changes), (torch.zeros(2, 7, dtype=torch.long),))


DYNAMIC = ["input_ids.0=1..64", "input_ids.1=1..128"]
SIZES = ((3, 11), (1, 17), (5, 2))  # None of them is that of the export.


def token_ids(seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 99, size, generator=generator) for size in SIZES]


def logits_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids).logits
    return logits
