"""Shapes of sounds, read from a config of transformers."""

from __future__ import annotations

import torch
from torch import nn

from fakexport.sources.input_request import InputRequest

FRAMES = 64  # a good second of speech, after the convolutions; divisible by what models subsample by
SAMPLES = 16_000

# What no signature tells: a dimension for the one channel.
_CHANNELLED_TYPES = frozenset(
    {
        "dac",
        "neucodec",
        "pe_audio",
        "pe_audio_encoder",
        "vibevoice_acoustic_tokenizer",
        "xcodec",
        "xcodec2",
    }
)
_IMAGE_LIKE_TYPES = frozenset({"clap", "clap_audio_model"})

# What no config tells: how many bins a spectrogram has.
_USUAL_BINS = {"gemma4_audio": 128}


def waveform(request: InputRequest) -> torch.Tensor:
    """Return `input_values`: raw samples of shape `[batch, samples]`, or `[batch, channels, samples]`.

    Some models take a spectrogram under this name: `[batch, frames, bins]`.
    """
    bins = request.setting("num_mel_bins")
    frames = request.setting("max_length")
    if bins is not None and request.setting("conv_stride") is None:
        return request.floats(request.batch, frames or 2 * FRAMES, bins)
    configs = (request.config, getattr(request.config, "audio_config", request.config))
    has_channel = any(config.model_type in _CHANNELLED_TYPES for config in configs)
    channels = 1 if has_channel else request.setting("audio_channels")
    return request.floats(request.batch, *([] if channels is None else [channels]), _samples(request))


def features(request: InputRequest) -> torch.Tensor:
    """Return `input_features`: a spectrogram of shape `[batch, frames, bins]`.

    Its time dimension is last for models with a convolution along it, such as Whisper.
    """
    per_frame = request.setting("input_feat_per_channel")
    if per_frame is not None:
        return request.floats(
            request.batch, 4 * FRAMES, per_frame * request.setting("input_channels", default=1)
        )
    decoder = getattr(request.config, "decoder_config", None)  # CLVP's reads the sound.
    bins = request.setting(
        "num_mel_bins", "feature_size", "num_chroma", default=getattr(decoder, "feature_size", None)
    )
    positions = request.setting("max_source_positions")
    if bins is not None and (window := request.setting("n_window")) is not None:
        return request.floats(request.batch, bins, 2 * window)  # Qwen's speech encoders read windows
    if request.config.model_type == "pop2piano":
        return request.floats(request.batch, 2 * FRAMES, request.config.d_model)
    if request.config.model_type == "univnet":
        return request.floats(request.batch, FRAMES, bins)
    if (semantic := getattr(request.config, "semantic_model_config", None)) is not None:
        frames = SAMPLES // (2 * semantic.feature_projection_input_dim)
        return request.floats(request.batch, frames, semantic.feature_projection_input_dim)
    if bins is not None and _has_convolution_over(bins, request.module):
        return request.floats(request.batch, bins, 2 * (positions or FRAMES))
    width = request.setting("feature_projection_input_dim", "input_dim", default=_width(request, bins))
    channel = (1,) if request.config.model_type in _IMAGE_LIKE_TYPES else ()
    return request.floats(request.batch, *channel, 2 * FRAMES, width)


def features_mask(request: InputRequest) -> torch.Tensor:
    """Return which frames of `input_features` are sound, all of them: `[batch, frames]`."""
    *_, first, second = features(request).shape
    is_last = first == request.setting("num_mel_bins", "feature_size")
    return request.ids(request.batch, second if is_last else first, value=1)


def latents(request: InputRequest) -> torch.Tensor:
    """Return what a decoder makes a sound of: `[batch, width, frames]`."""
    return request.floats(request.batch, request.setting("hidden_size"), FRAMES)


def noise_sequence(request: InputRequest) -> torch.Tensor:
    """Return what a vocoder makes a sound of: `[batch, frames, channels]`; without it, it draws."""
    return request.floats(request.batch, FRAMES, request.setting("model_in_channels"))


def spectrogram(request: InputRequest) -> torch.Tensor:
    """Return what a vocoder takes: `[batch, frames, bins]`."""
    return request.floats(request.batch, 2 * FRAMES, request.setting("model_in_dim", default=80))


def _width(request: InputRequest, bins: int | None) -> int:
    """Return how many values a frame has: the bins of all frames that are stacked in it."""
    usual = _USUAL_BINS.get(request.config.model_type, 80)
    stacked = 4 if request.config.model_type.startswith("granite_speech5") else 1
    return (bins or usual) * int(request.setting("num_stacked_frames", default=stacked))


def _has_convolution_over(bins: int, module: nn.Module) -> bool:
    return any(isinstance(part, nn.Conv1d) and part.in_channels == bins for part in module.modules())


def _samples(request: InputRequest) -> int:
    """Return as many samples as the convolutions turn into `FRAMES` frames; or whole tokens of them."""
    if (per_token := request.setting("samples_per_token")) is not None:
        return -(-SAMPLES // int(per_token)) * int(per_token)
    strides, kernels = request.setting("conv_stride"), request.setting("conv_kernel")
    if not isinstance(strides, (list, tuple)) or not isinstance(kernels, (list, tuple)):
        return SAMPLES
    length = FRAMES
    for stride, kernel in zip(reversed(strides), reversed(kernels), strict=True):
        length = (length - 1) * stride + kernel
    return length
