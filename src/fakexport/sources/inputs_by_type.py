"""Inputs whose names do not tell what they are: `hidden_states` are an image here, and a sound there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from fakexport.sources.audio_inputs import FRAMES, SAMPLES, latents
from fakexport.sources.image_inputs import height_and_width, image
from fakexport.sources.image_layouts import PIXELS, placed_patches
from fakexport.sources.input_request import InputRequest

Builder = Callable[[InputRequest], torch.Tensor | int]


def of_width(name: str, *, steps: int | None = None) -> Builder:
    """Return what makes `[batch, steps, width]` of the setting that is the width.

    Args:
        name: The setting.
        steps: Default: as many as the text has tokens.
    """
    return lambda request: request.floats(request.batch, steps or request.sequence, request.setting(name))


def _steps(request: InputRequest) -> torch.Tensor:
    return request.values(torch.arange(request.sequence).repeat(request.batch, 1))


def _present(request: InputRequest) -> torch.Tensor:
    return request.ids(request.batch, request.sequence, value=1)


def _samples(request: InputRequest) -> torch.Tensor:
    return request.floats(request.batch, request.setting("channels"), SAMPLES)


def _all_frames(request: InputRequest) -> torch.Tensor:
    return torch.ones(request.batch, 2 * FRAMES, dtype=torch.bool, device=request.device)


def _half_image(request: InputRequest) -> torch.Tensor:
    """Return an image that is put below its prompt; together they have the size of the config."""
    height, width = height_and_width(request)
    return request.floats(request.batch, request.setting("num_channels"), height // 2, width)


def _bins_first(request: InputRequest) -> torch.Tensor:
    return request.floats(request.batch, request.setting("mel_dim"), 2 * FRAMES)


def _codes_of_frames(request: InputRequest) -> torch.Tensor:
    """Return the codes of a sound, each of which becomes several frames."""
    return request.ids(request.batch, 2 * FRAMES // request.setting("repeats"))


def _noisy_block(request: InputRequest) -> torch.Tensor:
    return request.floats(request.batch, request.setting("block_size"), request.setting("hidden_size"))


def _layers_of_target(request: InputRequest) -> torch.Tensor:
    width = request.setting("hidden_size") * len(request.setting("target_layer_ids"))
    return request.floats(request.batch, request.sequence, width)


def _context_and_block(request: InputRequest) -> torch.Tensor:
    return request.ids(request.batch, request.sequence + request.setting("block_size"), value=1)


def _delay(request: InputRequest) -> torch.Tensor:
    """Return the embedding of the delay between sound and text, one for the whole batch."""
    return request.floats(1, request.setting("hidden_size"))


def _language(request: InputRequest) -> torch.Tensor:
    """Return the language of each text: the first."""
    return request.ids(request.batch)


def _point(request: InputRequest) -> torch.Tensor:
    """Return one point in one mask to find, of each image: `[batch, masks, points, 2]`."""
    return request.floats(request.batch, 1, 1, 2)


def _last_token(request: InputRequest) -> torch.Tensor:
    """Return the place of the one question of a prompt, counted from 1: after all of its text."""
    return request.ids(1, 1, value=request.sequence)


def _documents(request: InputRequest) -> torch.Tensor:
    """Return ids or a mask of a question with each of its documents: `[batch * documents, length]`."""
    return request.ids(request.batch * request.setting("n_docs"), request.sequence, value=1)


def _classes(request: InputRequest) -> torch.Tensor:
    """Return ids or a mask of the names of what is to be found: of each image, one name after the other."""
    return request.ids(_CLASSES * request.batch, request.sequence, value=1)


# Names of what a model looks for in each image.
_CLASSES = 2

# Without a prompt, a model that segments what it is pointed at leaves out its prompt encoder.
_PROMPT = MappingProxyType(
    {"input_points": _point, "input_labels": lambda request: request.ids(request.batch, 1, 1, value=1)}
)
_SPEECH = MappingProxyType({"hidden_states": of_width("input_dim", steps=2 * FRAMES)})

INPUTS_BY_TYPE: Mapping[str, Mapping[str, Builder]] = MappingProxyType(
    {
        "blt_local_encoder": {"num_patches": lambda request: request.sequence, "patch_ids": _steps},
        "blt_global_transformer": {"inputs_embeds": of_width("hidden_size")},
        "bridgetower_vision_model": {"image": image},
        "decision_transformer": {
            "states": of_width("state_dim"),
            "actions": of_width("act_dim"),
            "rewards": lambda request: request.floats(request.batch, request.sequence, 1),
            "returns_to_go": lambda request: request.floats(request.batch, request.sequence, 1),
            "timesteps": _steps,
            "attention_mask": _present,
        },
        "flava_multimodal_model": {"hidden_states": of_width("hidden_size")},
        "florence_vision": {"hidden_states": image},
        "gemma3n_audio": {
            "audio_mel": of_width("input_feat_size", steps=2 * FRAMES),
            "audio_mel_mask": lambda request: ~_all_frames(request),
        },
        "gemma4_vision": {
            PIXELS: lambda request: placed_patches(request)[PIXELS],
            "pixel_position_ids": lambda request: placed_patches(request)["image_position_ids"],
        },
        "granite_speech_encoder": _SPEECH,
        "granite_speech_plus_encoder": _SPEECH,
        "jev": {  # A batch of one prompt, with a question of the first type, which has two options.
            "input_ids": lambda request: request.ids(1, request.sequence),
            "marks": _last_token,
            "num_options": lambda request: request.ids(1, 1, value=2),
            "question_type_ids": lambda request: request.ids(1, 1),
        },
        "moshi_depth": {
            "input_ids": lambda request: request.ids(request.batch, request.setting("num_codebooks")),
            "last_hidden_state": of_width("input_size", steps=1),
        },
        "muse_glimmer_assistant": {
            "noise_embeds": _noisy_block,
            "context_hidden_states": _layers_of_target,
            "attention_mask": _context_and_block,
        },
        "nemotron3_5_transcribe_word_timestamp": {"inputs_embeds": of_width("hidden_size")},
        "phi4_multimodal_audio": {
            "hidden_states": of_width("input_size", steps=2 * FRAMES),
            "mask": _all_frames,
        },
        "omdet-turbo": {
            "classes_input_ids": _classes,
            "classes_attention_mask": _classes,
            "classes_structure": lambda request: request.ids(request.batch, value=_CLASSES),
            "tasks_input_ids": lambda request: request.ids(request.batch, request.sequence),
            "tasks_attention_mask": _present,
        },
        "qwen2_5_omni_bigvgan": {"mel_spectrogram": _bins_first},
        "qwen2_5_omni_dit": {
            "hidden_states": of_width("mel_dim", steps=2 * FRAMES),
            "condition_vector": of_width("mel_dim", steps=FRAMES),
            "speaker_embedding": of_width("enc_emb_dim", steps=2 * FRAMES),
            "quantized_code": _codes_of_frames,
            "time_step": lambda request: request.floats(request.batch),
        },
        # What the talker says of a frame, and the code that it chose of it.
        "qwen3_omni_moe_talker_code_predictor": {"inputs_embeds": of_width("hidden_size", steps=2)},
        "rag": {
            "context_input_ids": _documents,
            "context_attention_mask": _documents,
            "doc_scores": lambda request: request.floats(request.batch, request.setting("n_docs")),
        },
        **dict.fromkeys(("edgetam", "sam", "sam2", "sam3_tracker", "sam_hq"), _PROMPT),
        "seggpt": {
            "pixel_values": _half_image,
            "prompt_pixel_values": _half_image,
            "prompt_masks": _half_image,
        },
        "voxtral_realtime_text": {"t_cond": _delay},
        "vibevoice_acoustic_tokenizer_decoder": {"hidden_states": latents},
        "vibevoice_acoustic_tokenizer_encoder": {"hidden_states": _samples},
        "xmod": {"lang_ids": _language},
    }
)
