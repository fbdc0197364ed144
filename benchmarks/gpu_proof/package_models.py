"""Models for packages that are built without a GPU: Triton kernels, matrix products, attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class MLP(nn.Module):
    def __init__(self, width: int = 1024, hidden: int = 4096) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Layer norm, causal attention, GELU."""

    def __init__(self, width: int = 1024, heads: int = 16) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.norm2, self.mlp = nn.LayerNorm(width), MLP(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        found = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Logits(nn.Module):
    """A language model whose attention gets a boolean mask. The first token is never masked."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        is_first = torch.arange(input_ids.shape[1], device=input_ids.device) == 0
        mask = (input_ids % 7 != 0) | is_first
        return self.model(input_ids=input_ids, attention_mask=mask, use_cache=False).logits


def mlp():
    return MLP().eval(), (torch.zeros(64, 1024),)


def block():
    return Block().eval(), (torch.zeros(8, 512, 1024, dtype=torch.get_default_dtype()),)


def llama():
    """Return a Llama with two layers and dynamic sizes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8192, hidden_size=2048, intermediate_size=8192, num_hidden_layers=2,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=4096, use_cache=False,
        attn_implementation="sdpa",
    )  # fmt: skip
    return Logits(LlamaForCausalLM(config)).eval(), (torch.zeros(2, 64, dtype=torch.int64),)
