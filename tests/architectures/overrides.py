"""Settings that the name of a field cannot tell: what has to fit something else, and what has no default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["OVERRIDES"]

Settings = dict[str, Any]

BARK: Settings = {"block_size": 64, "input_vocab_size": 99, "output_vocab_size": 99}
EFFICIENTNET: Settings = {"width_coefficient": 0.25, "depth_coefficient": 0.2, "hidden_dim": 320}
FOUR_STAGES: Settings = {
    "num_hidden_layers": 4,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
    "reshape_hidden_states": False,
}
HGNET: Settings = {
    "embedding_size": 8,
    "hidden_sizes": [16, 32, 64, 64],
    "depths": [1, 1, 1, 1],
    "stem_channels": [3, 8, 8],
    "stage_in_channels": [8, 16, 32, 64],
    "stage_mid_channels": [8, 8, 8, 8],
    "stage_out_channels": [16, 32, 64, 64],
    "stage_num_blocks": [1, 1, 1, 1],
    "stage_numb_of_layers": [2, 2, 2, 2],
}
MAMBA: Settings = {"mamba_n_heads": 8, "mamba_d_head": 8}
RESNET: Settings = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 32, 64],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
SEAMLESS: Settings = {
    "speech_encoder_layers": 1,
    "speech_encoder_attention_heads": 4,
    "speech_encoder_intermediate_size": 48,
    "t2u_vocab_size": 99,
    "t2u_max_position_embeddings": 64,
    "t2u_encoder_layers": 1,
    "t2u_encoder_attention_heads": 4,
    "t2u_encoder_ffn_dim": 48,
    "t2u_decoder_layers": 1,
    "t2u_decoder_attention_heads": 4,
    "t2u_decoder_ffn_dim": 48,
    "unit_hifi_gan_vocab_size": 99,
    "unit_embed_dim": 16,
    "lang_embed_dim": 8,
    "spkr_embed_dim": 8,
    "upsample_initial_channel": 64,
}
SERIES: Settings = {"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2, 3]}
VQ: Settings = {
    "base_channels": 32,
    "channel_multiplier": [1, 1],
    "latent_channels": 32,
    "num_embeddings": 16,
}
WINDOWS: Settings = {"image_size": 64, "window_size": 2}

# The three parts of a rotary embedding, which together are half of a head.
MROPE: Settings = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
}
HALF_MROPE: Settings = {"rope_parameters": MROPE["rope_parameters"] | {"mrope_section": [1, 1, 0]}}

# The codes of Chameleon's images are digits from A to J.
LETTERS = ["".join("ABCDEFGHIJ"[int(digit)] for digit in str(code)) for code in range(16)]

# SigLIP's towers in 16 patches.
PATCHES: Settings = {"vision_config": {"patch_size": 8}}

# Gemma 4 sees and listens where its config says so.
GEMMA4: Settings = {
    "vision_config": {
        "model_type": "gemma4_vision",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "patch_size": 32,
        "pooling_kernel_size": 2,
        "position_embedding_size": 64,
    },
    "audio_config": {
        "model_type": "gemma4_audio",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "output_proj_dims": 32,
    },
}

# model type -> settings that are merged into the shrunken ones
OVERRIDES: Mapping[str, Settings] = {
    "align": {"vision_config": EFFICIENTNET, "projection_dim": 80},
    "aria": {"vision_config": {"patch_size": 8}, "projector_patch_to_query_dict": {"16": 4}},
    "autoformer": {**SERIES, "moving_average": 5, "label_length": 4},
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "bark": {"semantic_config": BARK, "coarse_acoustics_config": BARK, "fine_acoustics_config": BARK},
    "bit": {
        "embedding_size": 32,
        "hidden_sizes": [32, 64],
        "depths": [1, 2],
        "num_groups": 4,
        "out_features": ["stage2"],
        "drop_path_rate": 0.1,
    },
    "blip-2": {"image_token_index": 98},
    "bridgetower": {"vision_config": {"hidden_size": 64}},
    "bros": {"hidden_size": 64},
    "chameleon": {
        "vocabulary_map": {
            "<image>": 98,
            **{f"IMGIMG{letter}Z": 60 + code for code, letter in enumerate(LETTERS)},
        },
        "image_token_id": 98,
        "vq_config": {**VQ, "resolution": 16},
    },
    "clap": {
        "audio_config": {
            "patch_embeds_hidden_size": 8,
            "depths": [1, 1],
            "num_hidden_layers": 2,
            "num_attention_heads": [1, 2],
            "hidden_size": 16,
        },
    },
    "colmodernvbert": {"vlm_config": PATCHES},
    "colpali": {"vlm_config": {"projection_dim": 32, "vision_config": {"projection_dim": 32}}},
    "colqwen2": {"vlm_config": {"text_config": MROPE}},
    "conditional_detr": {"backbone_config": RESNET},
    "cosmos3_edge": {
        "text_config": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
        }
    },
    "csm": {"codec_config": {"upsample_groups": 32}},
    # Stage i takes its i-th drop rate: it needs more than i layers.
    "cvt": {
        "depth": [1, 2, 3],
        "embed_dim": [8, 16, 32],
        "num_heads": [1, 2, 4],
        "mlp_ratio": [2.0, 2.0, 2.0],
    },
    "deepseek_vl_hybrid": {"high_res_vision_config": {"global_attn_indexes": [0, 1]}},
    "d_fine": {
        "backbone_config": {**HGNET, "out_features": ["stage2", "stage3", "stage4"]},
        "encoder_in_channels": [32, 64, 64],
        "decoder_in_channels": [32, 32, 32],
        "lqe_hidden_dim": 16,
    },
    "dab-detr": {"backbone_config": RESNET},
    "dac": {"encoder_hidden_size": 8, "decoder_hidden_size": 128},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}, "ffn_config": {"hidden_size": 32}},
    "deepseek_ocr2": {"vision_config": {"sam_config": {"global_attn_indexes": [0, 1], "image_size": 64}}},
    "deepseek_ocr2_vision": {
        "sam_config": {"global_attn_indexes": [0, 1], "image_size": 64, "downsample_channels": [16, 32]}
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "deformable_detr": {"backbone_config": RESNET},
    "depth_anything": {"backbone_config": FOUR_STAGES},
    "detr": {"backbone_config": RESNET},
    "donut-swin": WINDOWS,
    "dots1": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "dots3_note": {
        "vision_config": {"mlp_layer_types": ["dense"] * 2, "adapter_in_dim": 32, "adapter_out_dim": 32},
        "audio_config": {"adapter_input_size": 32, "adapter_out_dim": 32, "feature_size": 128},
    },
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
    "efficientnet": EFFICIENTNET,
    "embedding_gemma2": GEMMA4,
    "ernie4_5_vl_moe": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "florence2": {"vision_config": {"projection_dim": 32}, "text_config": {"max_position_embeddings": 128}},
    "gemma3": {"mm_tokens_per_image": 4, "vision_config": {"patch_size": 8}},
    "gemma3n": {
        "text_config": {
            "intermediate_size": 48,
            "num_kv_shared_layers": 0,
            "activation_sparsity_pattern": [0.95, 0.0],
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 8,
        },
    },
    "gemma3n_text": {
        "intermediate_size": 48,
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.95, 0.0],
        "layer_types": ["sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
    },
    "gemma4": GEMMA4,
    "glm46v": {"text_config": MROPE},
    "glm4v": {"text_config": MROPE},
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "paddleocr_vl_text"), MROPE),
    "glm4v_text": MROPE,
    "glm4v_moe_text": HALF_MROPE,
    "glm_image_text": MROPE,
    "glm_ocr_text": MROPE,
    "glm4v_moe": {"text_config": HALF_MROPE},
    "glm5_next": {"vision_config": {"out_hidden_size": 32}},
    "glmga": {"text_config": MROPE},
    "glmasr": {"audio_config": {"intermediate_size": 128}},
    "glm_image": {"text_config": MROPE},
    "glm_ocr": {"text_config": MROPE},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granite4_vision": {
        "image_grid_pinpoints": [[32, 64], [64, 32]],
        "deepstack_layer_map": [[-1, 0]],
        "downsample_rate": "2/4",
        "vision_config": {"patch_size": 8},
        "qformer_config": {"num_hidden_layers": 1, "num_attention_heads": 4},
    },
    "granite_docling": PATCHES,
    "granitemoehybrid": {**MAMBA, "layer_types": ["linear_attention", "full_attention"]},
    "hgnet_v2": HGNET,
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "hunyuan_vl": {
        "text_config": {
            "head_dim": 8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 1, 1]},
        }
    },
    "idefics3": PATCHES,
    "informer": SERIES,
    "inkling_mm_model": {
        "audio_config": {"text_hidden_size": 32, "n_mel_bins": 8, "mel_vocab_size": 16},
        "vision_config": {"text_hidden_size": 32, "n_layers": 2, "patch_size": 4},
    },
    "instructblip": {"image_token_index": 98},
    "instructblipvideo": {"video_token_index": 98},
    "janus": {"vq_config": VQ},
    "kimi_k25": {
        "projection_hidden_size": 32,
        "vision_config": {"pos_emb_height": 8, "pos_emb_width": 8, "projection_hidden_size": 32},
    },
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "levit": {"key_dim": [4, 4, 4]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lilt": {"hidden_size": 48},
    "llama4": {
        "vision_config": {
            "intermediate_size": 128,
            "patch_size": 8,
            "pixel_shuffle_ratio": 0.5,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
            "vision_output_dim": 32,
        },
    },
    "llama4_vision_model": {
        "intermediate_size": 128,
        "patch_size": 8,
        "pixel_shuffle_ratio": 0.5,
        "projector_input_dim": 32,
        "projector_output_dim": 32,
        "vision_output_dim": 32,
    },
    "llava_next": {"image_grid_pinpoints": [[32, 64], [64, 32]]},
    "llava_next_video": {"image_grid_pinpoints": [[32, 64], [64, 32]]},
    "llava_onevision": {"image_grid_pinpoints": [[32, 64], [64, 32]]},
    "longcat_flash": {"zero_expert_num": 2, "expert_ffn_hidden_size": 16, "qk_head_dim": 16},
    "lw_detr": {
        "backbone_config": {
            "image_size": 64,
            "pretrain_image_size": 64,
            "num_windows": 4,
            "window_block_indices": [0],
            "out_features": ["stage1", "stage2"],
        },
        "projector_scale_factors": [1.0],
        "group_detr": 2,
        "decoder_self_attention_heads": 4,
        "decoder_cross_attention_heads": 4,
        "decoder_ffn_dim": 32,
    },
    "mamba2": {"num_heads": 8, "n_groups": 2, "chunk_size": 8},
    "maskformer-swin": WINDOWS,
    "mimi": {"upsample_groups": 32},
    "ministral": {"head_dim": 8},
    "minicpm_ocr": {"image_token_id": 98},
    "minicpmv4_6": {"image_token_id": 98},
    "minicpmv4_7": {"image_token_id": 98},
    "muse_glimmer": {"out_hidden_size": 128},
    "muse_spark_audio": {"num_hidden_layers": 4},
    "mllama": {
        "vision_config": {
            "intermediate_layers_indices": [0, 1],
            "num_global_layers": 1,
            "vision_output_dim": 96,
        },
        "text_config": {"cross_attention_layers": [1]},
    },
    "mobilebert": {"embedding_size": 16},
    "mobilevit": {"image_size": 64},
    "mobilevitv2": {"image_size": 64},
    "modernvbert": PATCHES,
    "molmo2": {
        "image_patch_id": 98,
        "vision_config": {"image_size": [32, 32], "patch_size": 8, "num_position_embeddings": 16},
        "adapter_config": {"vision_feature_layer": [1, 0]},
    },
    "moonshine_streaming": {
        "num_key_value_heads": 4,
        "encoder_config": {"sliding_windows": [[16, 4], [16, 0]]},
    },
    "musicgen": {"decoder": {"num_codebooks": 2}},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h_omni": {"image_token_id": 98, "video_token_id": 97, "audio_token_id": 96},
    "omdet-turbo": {
        "apply_layernorm_after_vision_backbone": False,
        "backbone_config": {
            "model_type": "swin",
            **WINDOWS,
            "embed_dim": 8,
            "depths": [1, 1, 1, 1],
            "num_heads": [1, 2, 4, 8],
            "out_indices": [2, 3, 4],
        },
        "image_size": 64,
        "text_projection_in_dim": 32,
        "text_projection_out_dim": 32,
        "class_embed_dim": 32,
        "task_encoder_hidden_dim": 24,
        "encoder_hidden_dim": 16,
        "vision_features_channels": [16, 16, 16],
        "encoder_in_channels": [16, 32, 64],
        "encoder_dim_feedforward": 48,
        "decoder_hidden_dim": 16,
        "decoder_dim_feedforward": 48,
        "decoder_num_heads": 4,
        "decoder_num_layers": 2,
        "num_queries": 16,
    },
    "ovis2": {"visual_indicator_token_ids": [90, 91, 92, 93, 94]},
    "owlv2": {"projection_dim": 32},
    "owlvit": {"projection_dim": 32},
    "paddleocr_vl": {"text_config": MROPE},
    "paligemma": {"projection_dim": 32, "vision_config": {"projection_dim": 32}},
    "pp_ocrv6_small_det": {
        "backbone_config": {
            "block_configs": [
                [[3, 96, 96, 1, True]],
                [[3, 96, 96, 2, False]],
                [[3, 96, 192, 2, False]],
                [[3, 192, 384, 2, False]],
            ],
            "out_features": [f"stage{stage}" for stage in range(1, 5)],
        },
        "layer_list_out_channels": [96, 96, 192, 384],
    },
    "prompt_depth_anything": {"backbone_config": FOUR_STAGES},
    "qwen2_5_omni": {"token2wav_config": {"bigvgan_config": {"upsample_initial_channel": 64}}},
    "qwen2_5_omni_audio_encoder": {"n_window": 16},
    "qwen2_5_omni_thinker": {
        "audio_config": {"n_window": 16, "output_dim": 32},
        "vision_config": {"fullatt_block_indexes": [1]},
        "text_config": MROPE,
        "vision_start_token_id": 92,
    },
    "qwen3_omni_moe_thinker": {
        "audio_config": {"output_dim": 32},
        "vision_config": {"deepstack_visual_indexes": [0, 1]},
        "text_config": MROPE,
        "vision_start_token_id": 92,
    },
    "qwen2_5_vl": {"text_config": MROPE},
    "qwen2_vl": {"text_config": MROPE},
    "reformer": {
        "attn_layers": ["local", "lsh"],
        "axial_pos_shape": [8, 8],
        "axial_pos_embds_dim": [16, 16],
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
        "feed_forward_size": 48,
    },
    "rf_detr": {"backbone_config": {"image_size": 64, "patch_size": 8, "num_windows": 2}},
    "roc_bert": {
        "pronunciation_vocab_size": 99,
        "pronunciation_embed_dim": 16,
        "shape_vocab_size": 99,
        "shape_embed_dim": 16,
    },
    "rt_detr": {"decoder_in_channels": [32, 32, 32]},
    "rt_detr_v2": {"decoder_in_channels": [32, 32, 32]},
    "qwen3_asr": {"audio_config": {"output_dim": 32}},
    "sam": {"vision_config": {"num_pos_feats": 16}},
    "sam2": {
        "vision_config": {
            "backbone_config": {
                "image_size": [64, 64],
                "hidden_size": 8,
                "embed_dim_per_stage": [8, 16, 32, 64],
                "blocks_per_stage": [1, 1, 2, 1],
                "global_attention_blocks": [3],
            },
            "backbone_channel_list": [64, 32, 16, 8],
            "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        },
        "prompt_encoder_config": {"image_size": 64},
    },
    "sam_hq": {"vision_config": {"num_pos_feats": 16}},
    "seamless_m4t": SEAMLESS,
    "seamless_m4t_v2": {
        **SEAMLESS,
        "char_vocab_size": 99,
        "t2u_variance_predictor_embed_dim": 32,
        "t2u_variance_predictor_hidden_dim": 16,
    },
    "shieldgemma2": {"mm_tokens_per_image": 4, **PATCHES},
    "smolvlm": PATCHES,
    "swin": WINDOWS,
    "swin2sr": {"num_heads": [2, 2], "depths": [2, 2]},
    "t5gemma2": {"encoder": {"mm_tokens_per_image": 4, **PATCHES}},
    "table-transformer": {"backbone_config": RESNET},
    "textnet": {"stem_out_channels": 8},
    "time_series_transformer": SERIES,
    "timesfm2_5": {"context_length": 128},
    "tipsv2_dpt": {"backbone_config": FOUR_STAGES},
    "tvp": {
        "backbone_config": {**RESNET, "out_features": ["stage4"]},
        "hidden_size": 64,
        "max_img_size": 224,
        "visual_prompt_size": 8,
        "num_frames": 4,
    },
    "ultravbert": PATCHES,
    "uvdoc": {"backbone_config": {"out_features": [f"stage{stage}" for stage in range(1, 7)]}},
    "upernet": {"backbone_config": RESNET, "auxiliary_channels": 16, "pool_scales": [1, 2]},
    "vipllava": {"vision_feature_layer": [-2, -1]},
    "vjepa2": {
        "crop_size": 32,
        "frames_per_clip": 4,
        "num_pooler_layers": 1,
        "pred_hidden_size": 32,
        "pred_num_attention_heads": 4,
        "pred_num_hidden_layers": 2,
    },
    "voxtral": {"audio_token_id": 98, "audio_config": {"intermediate_size": 128}},
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
    "xclip": {"vision_config": {"mit_hidden_size": 16}},
    "zamba": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "mamba_dt_rank": 8,
    },
    "zamba2": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "adapter_rank": 8,
    },
    "zoedepth": {"backbone_config": FOUR_STAGES},
}
