"""Configs of small models, one for each way in which inputs are derived."""

TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {key: value for key, value in TEXT.items() if key not in ("num_key_value_heads", "head_dim")}
SEQ2SEQ = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
IMAGE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
SPEECH = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "conv_dim": [16, 16],
    "conv_stride": [5, 4],
    "conv_kernel": [10, 3],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
SMALL_TEXT = {name: value for name, value in TEXT.items() if "token" not in name}
DUAL_TEXT = {**ENCODER, "projection_dim": 16}

TOKENS = {"input_ids": (2, 16), "attention_mask": (2, 16)}
PIXELS = {"pixel_values": (2, 3, 32, 32)}

# model type -> config, and the inputs that are expected for it
TINY = {
    "llama": (TEXT, TOKENS),
    "gpt2": ({"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}, TOKENS),
    "mamba": ({"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4}, TOKENS),
    "bert": (ENCODER, TOKENS),
    "bros": ({**ENCODER, "hidden_size": 64}, {**TOKENS, "bbox": (2, 16, 4)}),
    "roberta": ({**ENCODER, "pad_token_id": 1}, TOKENS),
    "distilbert": ({"vocab_size": 64, "dim": 32, "hidden_dim": 48, "n_layers": 1, "n_heads": 4}, TOKENS),
    "t5": (
        {"vocab_size": 64, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 1, "num_heads": 4},
        {**TOKENS, "decoder_input_ids": (2, 16)},
    ),
    "bart": (SEQ2SEQ, {**TOKENS, "decoder_input_ids": (2, 16)}),
    "blenderbot": (SEQ2SEQ, {**TOKENS, "decoder_input_ids": (2, 16)}),
    "vit": (IMAGE, PIXELS),
    "deit": (IMAGE, PIXELS),
    "dinov2": ({**IMAGE, "mlp_ratio": 2}, PIXELS),
    "resnet": (
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "num_channels": 1},
        {"pixel_values": (2, 1, 224, 224)},
    ),
    "swin": (
        {
            "image_size": [32, 64],
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1],
            "num_heads": [2],
            "window_size": 4,
        },
        {"pixel_values": (2, 3, 32, 64)},
    ),
    "segformer": (
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [4, 2],
            "hidden_sizes": [16, 32],
            "num_attention_heads": [2, 4],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
        {"pixel_values": (2, 3, 224, 224)},
    ),
    "videomae": ({**IMAGE, "num_frames": 4}, {"pixel_values": (2, 4, 3, 32, 32)}),
    "clip": (
        {"text_config": DUAL_TEXT, "vision_config": IMAGE, "projection_dim": 16},
        {"input_ids": (2, 16), **PIXELS, "attention_mask": (2, 16)},
    ),
    "blip": (
        {"text_config": ENCODER, "vision_config": IMAGE, "projection_dim": 16, "image_text_hidden_size": 16},
        {**PIXELS, **TOKENS},
    ),
    "llava": (
        {
            "text_config": {**TEXT, "model_type": "llama"},
            "vision_config": {**IMAGE, "model_type": "clip_vision_model"},
        }
        | {"image_token_index": 63},
        {"input_ids": (2, 32), **PIXELS, "attention_mask": (2, 32)},
    ),
    "llama4": (
        {
            "image_token_index": 63,
            "text_config": {
                **TEXT,
                "intermediate_size_mlp": 48,
                "num_local_experts": 2,
                "attention_chunk_size": 32,
            },
            "vision_config": {
                **IMAGE,
                "intermediate_size": 128,
                "pixel_shuffle_ratio": 0.5,
                "projector_input_dim": 32,
                "projector_output_dim": 32,
                "vision_output_dim": 32,
            },
        },
        {"input_ids": (2, 20), **PIXELS, "attention_mask": (2, 20)},
    ),
    "vision-encoder-decoder": (
        {
            "encoder": {**IMAGE, "model_type": "vit"},
            "decoder": {"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 4}
            | {"add_cross_attention": True, "is_decoder": True},
        },
        {**PIXELS, "decoder_input_ids": (2, 16)},
    ),
    "whisper": (
        {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32},
        {"input_features": (2, 8, 40), "decoder_input_ids": (2, 16)},
    ),
    "speech_to_text": (
        {
            **SEQ2SEQ,
            "input_feat_per_channel": 8,
            "input_channels": 1,
            "max_target_positions": 32,
            "conv_channels": 16,
        },
        {"input_features": (2, 256, 8), "decoder_input_ids": (2, 16)},
    ),
    "wav2vec2": (SPEECH, {"input_values": (2, 1280)}),
    "hubert": (SPEECH, {"input_values": (2, 1280)}),
    "wav2vec2-bert": (
        {**ENCODER, "feature_projection_input_dim": 12, "conv_depthwise_kernel_size": 3},
        {"input_features": (2, 128, 12)},
    ),
    "audio-spectrogram-transformer": (
        {**IMAGE, "max_length": 32, "num_mel_bins": 16, "patch_size": 8},
        {"input_values": (2, 32, 16)},
    ),
    "encodec": (
        {
            "num_filters": 4,
            "hidden_size": 16,
            "codebook_size": 16,
            "codebook_dim": 16,
            "upsampling_ratios": [4, 2],
        },
        {"input_values": (2, 1, 16000)},
    ),
    "patchtst": (
        {"context_length": 32, "num_input_channels": 3, "d_model": 16, "ffn_dim": 16, "num_hidden_layers": 1},
        {"past_values": (2, 32, 3)},
    ),
    "perceiver": (
        {"vocab_size": 64, "d_model": 16, "d_latents": 32, "num_latents": 8, "max_position_embeddings": 64}
        | {"num_self_attends_per_block": 1, "num_self_attention_heads": 2, "num_cross_attention_heads": 2},
        {"inputs": (2, 16)},
    ),
    "dia": (
        {
            "encoder_config": SMALL_TEXT,
            "decoder_config": {
                **SMALL_TEXT,
                "num_channels": 3,
                "cross_hidden_size": 32,
                "cross_num_attention_heads": 4,
                "cross_num_key_value_heads": 4,
                "cross_head_dim": 8,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": 0,
            },
            "delay_pattern": [0, 1, 2],
        },
        {**TOKENS, "decoder_input_ids": (2, 16, 3)},
    ),
    "clvp": (
        {
            "text_config": {**ENCODER, "num_attention_heads": 1, "projection_dim": 32},
            # The model itself ends what it says with a few fixed codes, of which the largest is 248.
            "speech_config": {
                **ENCODER,
                "vocab_size": 256,
                "num_attention_heads": 1,
                "projection_dim": 32,
            },
            "decoder_config": {
                **SMALL_TEXT,
                "feature_size": 20,
                "num_mel_attn_blocks": 1,
                "max_text_tokens": 64,
                "bos_token_id": 1,
                "eos_token_id": 2,
            },
            "projection_dim": 32,
        },
        {**TOKENS, "input_features": (2, 20, 128)},
    ),
    "speecht5_hifigan": (
        {
            "model_in_dim": 12,
            "upsample_initial_channel": 16,
            "upsample_rates": [2, 2],
            "upsample_kernel_sizes": [4, 4],
            "resblock_kernel_sizes": [3],
            "resblock_dilation_sizes": [[1]],
        },
        {"spectrogram": (2, 128, 12)},
    ),
    "aria": (
        {
            "vision_config": {"model_type": "idefics3_vision", **IMAGE},
            "text_config": {"model_type": "aria_text", **TEXT, "moe_num_experts": 4, "moe_topk": 2},
            "projector_patch_to_query_dict": {"25": 4},  # Not the 4 x 4 of the image size.
            "image_token_index": 9,
        },
        {
            "input_ids": (2, 20),
            "pixel_values": (2, 3, 40, 40),
            "pixel_mask": (2, 40, 40),
            "attention_mask": (2, 20),
        },
    ),
    "audioflamingo3_encoder": (
        {**ENCODER, "num_mel_bins": 20, "max_source_positions": 32},
        {"input_features": (2, 20, 64), "input_features_mask": (2, 64)},
    ),
    "fun_asr_nano_encoder": (
        {
            **ENCODER,
            "max_position_embeddings": 256,
            "num_mel_bins": 4,
            "num_stacked_frames": 5,
            "num_timestamp_prediction_layers": 1,
        },
        {"input_features": (2, 128, 20), "input_features_mask": (2, 128)},
    ),
    "pocket_tts_audio_tokenizer_decoder": (
        {**ENCODER, "num_filters": 4, "upsample_groups": 32, "num_key_value_heads": 4, "head_dim": 8},
        {"latents": (2, 32, 64)},
    ),
    "pi0": (
        {
            "chunk_size": 4,
            "max_state_dim": 6,
            "max_action_dim": 5,
            "vlm_config": {
                "model_type": "paligemma",
                "projection_dim": 32,
                "image_token_id": 60,
                "text_config": {"model_type": "gemma", **TEXT, "num_key_value_heads": 1},
                "vision_config": {"model_type": "siglip_vision_model", **IMAGE, "vision_use_head": False},
            },
            "dit_config": {"model_type": "gemma", **TEXT, "num_key_value_heads": 1},
        },
        {
            "state": (2, 6),
            "noise": (2, 4, 5),
            "timestep": (2,),
            "input_ids": (2, 32),
            "pixel_values": (2, 1, 3, 32, 32),
            "pixel_attention_mask": (2, 1),
            "attention_mask": (2, 32),
        },
    ),
    "rf_detr": (
        {
            "backbone_config": {
                "model_type": "rf_detr_dinov2",
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 36,
                "patch_size": 4,
                "num_windows": 2,
                "out_indices": [1, 2],
            },
            "d_model": 32,
            "num_queries": 4,
            "group_detr": 1,
            "decoder_layers": 1,
            "decoder_ffn_dim": 32,
            "decoder_self_attention_heads": 4,
            "decoder_cross_attention_heads": 4,
        },
        {"pixel_values": (2, 3, 40, 40)},
    ),
    "musicgen_decoder": (
        {"vocab_size": 64, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
        | {"num_codebooks": 2, "pad_token_id": 64, "bos_token_id": 64},
        {"input_ids": (4, 16), "attention_mask": (2, 16)},
    ),
    "kyutai_speech_to_text": (
        {**TEXT, "ffn_dim": 48, "num_codebooks": 3, "codebook_vocab_size": 9, "audio_pad_token_id": 90},
        {"input_ids": (2, 16, 4), "attention_mask": (2, 16)},
    ),
    "fsmt": (
        {**{name: value for name, value in SEQ2SEQ.items() if name != "vocab_size"}}
        | {"src_vocab_size": 64, "tgt_vocab_size": 64, "langs": ["en", "de"], "pad_token_id": 1},
        {**TOKENS, "decoder_input_ids": (2, 16), "decoder_attention_mask": (2, 16)},
    ),
    "pop2piano": (
        {"vocab_size": 64, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 1, "num_heads": 4},
        {"decoder_input_ids": (2, 16), "input_features": (2, 128, 32)},
    ),
    "univnet": (
        {"num_mel_bins": 12, "model_in_channels": 6, "model_hidden_channels": 6}
        | {"kernel_predictor_hidden_channels": 6},
        {"input_features": (2, 64, 12), "noise_sequence": (2, 64, 6)},
    ),
    "xclip_vision_model": (
        {**IMAGE, "num_frames": 4, "mit_hidden_size": 32, "mit_intermediate_size": 48},
        {"pixel_values": (8, 3, 32, 32)},
    ),
    "molmo2_vision": (
        {**IMAGE, "head_dim": 8, "num_key_value_heads": 4, "image_size": [32, 32]},
        {"pixel_values": (2, 16, 192)},
    ),
    "granite_speech5_encoder": (
        {**ENCODER, "vocab_size": 32, "num_mel_bins": 5, "context_size": 16},
        {"input_features": (2, 128, 20)},
    ),
}
