"""Makes the default config of a model type small: every size by the name of its field."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["shrunken"]

VOCABULARY = 99

# Sizes that fit each other, and the fields that have them. A field is never made larger than its default.
SIZES = (
    (VOCABULARY, "vocab_size text_vocab_size entity_vocab_size n_vocab n_token vocab_size_per_layer_input"),
    (
        64,
        """max_position_embeddings n_positions n_ctx max_sequence_length max_seq_len max_seq_length
        sliding_window max_source_positions max_target_positions max_2d_position_embeddings
        attention_window""",
    ),
    (
        48,
        """intermediate_size ffn_dim d_ff n_inner d_inner mlp_dim encoder_ffn_dim decoder_ffn_dim
        ffn_hidden_size moe_intermediate_size shared_expert_intermediate_size intermediate_size_mlp
        encoder_intermediate_size decoder_intermediate_size dense_intermediate_size
        shared_intermediate_size dim_feedforward""",
    ),
    (
        32,
        """hidden_size d_model n_embd dim embed_dim emb_dim embedding_dim embedding_size hidden_dim
        image_size encoder_hidden_size decoder_hidden_size encoder_hidden_dim text_hidden_size
        vision_hidden_size fusion_hidden_size out_hidden_size attention_hidden_size
        projector_hidden_size backbone_hidden_size image_text_hidden_size fpn_hidden_size
        mask_feature_size feature_size output_channels conv_channels lru_width d_latents d_embed
        word_embed_proj_dim text_embed_dim vision_embed_dim shared_dim adapter_hidden_size query_dim
        out_dim hidden_size_global memory_attention_hidden_size projection_size codebook_dim
        reassemble_hidden_size bottleneck_features vector_quantization_hidden_dimension""",
    ),
    (
        16,
        """projection_dim kv_lora_rank q_lora_rank classifier_proj_size codevector_dim proj_codevector_dim
        num_codevectors_per_group xvector_output_dim num_filters codebook_size mamba_d_state state_size
        base_channels num_buckets upsample_initial_channel""",
    ),
    (
        8,
        """head_dim d_kv d_head kv_channels attention_head_size qk_nope_head_dim qk_rope_head_dim
        v_head_dim index_head_dim linear_key_head_dim linear_value_head_dim mamba_d_head mamba_head_dim
        num_queries num_conv_pos_embeddings rotary_dim prompt_length""",
    ),
    (
        4,
        """num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads
        attention_heads encoder_num_attention_heads decoder_num_attention_heads num_self_attention_heads
        n_attention_heads num_experts num_local_experts n_routed_experts moe_num_experts ffn_num_experts
        num_conv_pos_embedding_groups""",
    ),
    (
        2,
        """num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers depth
        num_decoder_layers num_encoder_layers encoder_num_hidden_layers decoder_num_hidden_layers
        encoder_num_layers decoder_num_layers num_blocks num_key_value_heads num_kv_heads n_group
        topk_group num_experts_per_tok num_experts_per_token moe_topk moe_k depths num_hidden_groups""",
    ),
)
SIZE = {name: size for size, names in SIZES for name in names.split()}

# Lists with one width for each stage of a network.
WIDTHS = ("hidden_sizes", "embed_dim", "embed_dims", "neck_hidden_sizes", "hidden_size", "dims")
HEADS = ("num_heads", "num_attention_heads")


def shrunken(config: Any) -> dict[str, Any]:
    """Returns the settings that make a config small, as a `config.json` holds them.

    Args:
        config: The default config of a model type, or a config inside of one.
    """
    values, defaults = vars(config), vars(type(config)())
    settings: dict[str, Any] = {"model_type": config.model_type}
    free_token = VOCABULARY - 1
    for field in dataclasses.fields(config):
        name, value = field.name, values.get(field.name)
        if hasattr(value, "model_type"):
            settings[name] = shrunken(value)
        elif name == "num_key_value_heads" and value == values.get("num_attention_heads"):
            settings[name] = _small("num_attention_heads", value)
        elif type(value) is int and value > free_token and "_token_i" in name:
            settings[name] = free_token
            free_token -= 1
        elif name != "layer_types" and (small := _small(name, value)) != defaults.get(name):
            settings[name] = small
    if "num_hidden_layers" not in settings and values.get("_out_features"):
        settings["out_features"] = values["_out_features"]  # is no field of the config
    return settings


def _small(name: str, value: Any) -> Any:
    if type(value) is int:
        return min(value, SIZE.get(name, value))
    if not isinstance(value, (list, tuple)) or not all(type(item) is int for item in value):
        return value
    sizes = enumerate(value)
    if name in WIDTHS:
        return [min(size, 8 * 2 ** min(stage, 3)) for stage, size in sizes]
    if name in HEADS:
        return [min(size, 2 ** min(stage, 3)) for stage, size in sizes]
    return [min(size, SIZE.get(name, size)) for size in value]
