"""Gives a small config several blocks of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["deepened"]

# Fields that count layers, and lists with one entry for each layer. Of the stages of a network, the last one
# gets the layers.
COUNTS = frozenset(
    {
        "decoder_layers",
        "decoder_num_hidden_layers",
        "decoder_num_layers",
        "depth",
        "encoder_layers",
        "encoder_num_hidden_layers",
        "encoder_num_layers",
        "n_layer",
        "n_layers",
        "num_blocks",
        "num_decoder_layers",
        "num_encoder_layers",
        "num_hidden_layers",
        "num_layers",
        "pred_num_hidden_layers",
        "speech_encoder_layers",
        "t2u_decoder_layers",
        "t2u_encoder_layers",
    }
)
STAGES = frozenset({"depths", "stage_num_blocks", "blocks_per_stage"})
LISTS = frozenset({"layer_types", "layers_block_type", "attn_layers", "activation_sparsity_pattern"})


def deepened(settings: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """The settings with at least `depth` layers, also in configs inside; kinds of layers repeat."""
    return {name: _deepened(name, value, depth) for name, value in settings.items()}


def _deepened(name: str, value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        return deepened(value, depth)
    if name in COUNTS and type(value) is int and value:
        return max(value, depth)
    if name in STAGES and isinstance(value, list) and value:
        return [*value[:-1], max(value[-1], depth)]
    if name in LISTS and isinstance(value, list) and value:
        return [value[at % len(value)] for at in range(max(depth, len(value)))]
    return value
