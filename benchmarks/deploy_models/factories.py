"""Factories for the models of the table that a library source, such as `hf:...`, cannot describe."""

import itertools

import torch
from torch import nn


def mlp():
    widths = (512, 2048, 2048, 2048, 512)
    layers = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.GELU())]
    return nn.Sequential(*layers[:-1]).eval(), (torch.randn(16, 512),)


class SoftClipped(nn.Module):
    """Linear layers with the C++ operator of examples/custom_ops between them."""

    def __init__(self, width=1024, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.ops.signal_ops.soft_clip(layer(x), 1.5)
        return x


def soft_clipped():
    return SoftClipped().eval(), (torch.randn(16, 1024),)


def whisper_encoder():
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=256,
        encoder_layers=4,
        encoder_attention_heads=4,
        encoder_ffn_dim=1024,
        num_mel_bins=80,
        max_source_positions=250,
    )
    return WhisperEncoder(config).eval(), (torch.randn(2, 80, 500),)
