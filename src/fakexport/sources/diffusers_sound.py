"""Inputs of the classes of diffusers that make speech, sounds and music.

Seen on diffusers 0.42.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from fakexport.sources.diffusers_builders import (
    LENGTH,
    TEXT,
    Builder,
    floats,
    ids,
    positions,
    present,
    steps,
    steps_in_dtype,
)
from fakexport.sources.diffusers_sizes import latent_shape
from fakexport.sources.input_request import InputRequest

# Latents of 30 s of sound at 25 Hz, which `AceStepPipeline` passes as the timbre.
_TIMBRE_FRAMES = 750
# `SpectrogramDiffusionPipeline` encodes notes of this many tokens.
_NOTE_TOKENS = 2048


def _sound_rotary(request: InputRequest) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (latent_shape(request)[-1] + 1, int(request.setting("attention_head_dim")) // 2)
    cosines = torch.ones(shape, device=request.device)
    return cosines, torch.zeros_like(cosines)


def _context_of_latents(request: InputRequest) -> torch.Tensor:
    """Return what is concatenated to the latents: the source, and a mask of the chunks."""
    own = int(request.setting("audio_acoustic_hidden_dim"))
    return request.floats(request.batch, LENGTH, int(request.setting("in_channels")) - own)


def _ace_step_text(request: InputRequest) -> torch.Tensor:
    width = int(request.setting("encoder_hidden_size", "hidden_size"))
    return request.floats(request.batch, request.sequence, width)


def _frames_of_all_layers(request: InputRequest) -> torch.Tensor:
    layers, width = request.setting("num_condition_layers"), request.setting("condition_hidden_dim")
    return request.floats(request.batch, LENGTH, int(layers) * int(width))


def _latent_condition(request: InputRequest) -> torch.Tensor | None:
    if not request.setting("use_latent_condition", default=False):
        return None
    return request.floats(request.batch, LENGTH, int(request.setting("latent_dim")))


def _notes_and_sound(request: InputRequest) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the encoded notes and the encoded sound before, each with its mask."""
    width, length = int(request.setting("d_model")), int(request.setting("targets_length"))
    return [
        (request.floats(request.batch, each, width), request.ids(request.batch, each, value=1).bool())
        for each in (_NOTE_TOKENS, length)
    ]


def _learned_length(request: InputRequest) -> int:
    is_learned = request.setting("use_learned_position_embedding") is not None
    return int(request.setting("max_seq_length")) if is_learned else request.sequence


def _second_text(request: InputRequest) -> torch.Tensor:
    width = int(request.setting("text_encoder_1_dim"))
    return request.floats(request.batch, _learned_length(request), width)


def _second_mask(request: InputRequest) -> torch.Tensor:
    return request.ids(request.batch, _learned_length(request), value=1)


SOUNDS: Mapping[str, Mapping[str, Builder]] = MappingProxyType(
    {
        "StableAudioDiTModel": {
            "global_hidden_states": floats(1, "global_states_input_dim"),
            "rotary_embedding": _sound_rotary,
        },
        # The pipeline calls it once for the text, and once for the seconds.
        "StableAudioProjectionModel": {
            "text_hidden_states": floats(TEXT, "text_encoder_dim"),
            "start_seconds": steps,
            "end_seconds": steps,
        },
        "AudioLDM2ProjectionModel": {
            "hidden_states": floats(TEXT, "text_encoder_dim"),
            "hidden_states_1": _second_text,
            "attention_mask": ids(TEXT, value=1),
            "attention_mask_1": _second_mask,
        },
        "StableAudio3DiTModel": {
            "encoder_hidden_states": floats(TEXT, "cond_token_dim"),
            "global_hidden_states": floats("global_cond_dim"),
            "encoder_attention_mask": ids(TEXT, value=1),
            # The inpainting pipeline passes it: the sound that is kept, and a mask.
            "local_add_cond": floats("local_add_cond_dim", LENGTH),
        },
        "StableAudio3DurationEmbedder": {"seconds": steps},
        "AceStepAudioTokenDetokenizer": {"hidden_states": floats(LENGTH, "hidden_size")},
        "AceStepAudioTokenizer": {
            "hidden_states": floats(LENGTH, "pool_window_size", "audio_acoustic_hidden_dim")
        },
        "AceStepConditionEncoder": {
            "text_hidden_states": floats(TEXT, "text_hidden_dim"),
            "text_attention_mask": present(TEXT),
            "lyric_hidden_states": floats(TEXT, "text_hidden_dim"),
            "lyric_attention_mask": present(TEXT),
            "refer_audio_acoustic_hidden_states_packed": floats(_TIMBRE_FRAMES, "timbre_hidden_dim"),
            "refer_audio_order_mask": lambda request: positions(request, request.batch),
        },
        "AceStepTransformer1DModel": {
            "hidden_states": floats(LENGTH, "audio_acoustic_hidden_dim"),
            "timestep": steps_in_dtype,
            "timestep_r": steps_in_dtype,
            "encoder_hidden_states": _ace_step_text,
            "context_latents": _context_of_latents,
        },
        "LongCatAudioDiTTransformer": {
            "hidden_states": floats(LENGTH, "latent_dim"),
            "encoder_hidden_states": floats(TEXT, "dit_text_dim"),
            "encoder_attention_mask": present(TEXT),
            "timestep": steps_in_dtype,
            "attention_mask": present(LENGTH),
            "latent_cond": _latent_condition,
        },
        "MMAudioVocoder": {"mel": floats("num_mels", LENGTH)},
        "MiniMaxMusic3ConditionEncoder": {"hidden_states": _frames_of_all_layers},
        "MiniMaxMusic3RVQDepthDecoder": {"inputs_embeds": floats("num_codebooks", "hidden_size")},
        "MiniMaxMusic3Transformer1DModel": {
            "hidden_states": floats("in_channels", LENGTH),
            "timestep": steps_in_dtype,
            "encoder_hidden_states": floats(LENGTH, "condition_dim"),
        },
        "MiniMaxMusic3Vocoder": {"latents": floats("latent_channels", LENGTH)},
        "T5FilmDecoder": {
            "encodings_and_masks": _notes_and_sound,
            "decoder_input_tokens": floats("targets_length", "input_dims"),
            "decoder_noise_time": steps,
        },
    }
)
