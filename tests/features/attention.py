"""Features of `torch.nn.attention`: kernels, biases and FlexAttention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .feature import Made, feature, ramp, register


class Heads(nn.Module):
    """Projects to heads, and lets a function attend."""

    def __init__(self, attend: Any, key_heads: int = 2) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(32, 32), nn.Linear(32, 16 * key_heads)
        self.attend, self.key_heads = attend, key_heads

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(x).unflatten(-1, (2, 16)).transpose(1, 2)
        k = self.key(x).unflatten(-1, (self.key_heads, 16)).transpose(1, 2)
        return self.attend(q, k, k * 2)


def _hidden() -> tuple[Tensor]:
    return (ramp(2, 8, 32),)


register(
    sdpa_plain=lambda: (Heads(F.scaled_dot_product_attention), _hidden()),
    sdpa_grouped=lambda: (
        Heads(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), 1),
        _hidden(),
    ),
    flex_plain=lambda: _flex(Heads(flex_attention)),
    flex_grouped=lambda: _flex(Heads(lambda q, k, v: flex_attention(q, k, v, enable_gqa=True), 1)),
)


@feature
def sdpa_boolean_mask() -> Made:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=q.device).tril()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return Heads(attend), _hidden()


@feature
def sdpa_math_kernel() -> Made:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v)

    return Heads(attend), _hidden()


@feature
def sdpa_flash_kernel() -> Made:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            return F.scaled_dot_product_attention(q, k, v)

    return Heads(attend), _hidden()


@feature
def sdpa_causal_bias() -> Made:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(q.size(2), k.size(2)))

    return Heads(attend), _hidden()


def _flex(module: nn.Module) -> Made:
    """Eager FlexAttention has no backward pass on the CPU, so the weights ask for none."""
    return module.requires_grad_(False), _hidden()


@feature
def flex_score_mod() -> Made:
    def relative(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return score + (row - column)

    return _flex(Heads(lambda q, k, v: flex_attention(q, k, v, score_mod=relative)))


@feature
def flex_score_mod_with_a_table() -> Made:
    class Biased(Heads):
        def __init__(self) -> None:
            super().__init__(self._attend)
            self.table = nn.Parameter(torch.linspace(0, 1, 2))

        def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            def biased(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
                return score + self.table[head]

            return flex_attention(q, k, v, score_mod=biased)

    return _flex(Biased())


def _causal(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
    return row >= column


@feature
def flex_block_mask() -> Made:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = create_block_mask(_causal, None, None, q.size(2), k.size(2), device=q.device)
        return flex_attention(q, k, v, block_mask=mask)

    return _flex(Heads(attend))


@feature
def flex_block_mask_of_the_module() -> Made:
    class Masked(Heads):
        def __init__(self) -> None:
            super().__init__(self._attend)
            self.mask = create_block_mask(_causal, None, None, 8, 8, device="cpu")

        def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return flex_attention(q, k, v, block_mask=self.mask.to(q.device))

    return _flex(Masked())


@feature
def flex_with_log_sum() -> Made:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return flex_attention(q, k, v, return_lse=True)

    return _flex(Heads(attend))
