"""Shapes of what a diffusers model works on: latents, images, sounds, text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fakexport.sources.input_request import InputRequest
from fakexport.sources.source_error import SourceError

TEXT_TOKENS = 77
SIDE = 64
FRAMES = 5
VIDEO_SIDE = 32
PACKED_SIDE = 32
SAMPLES = 1024
WAVEFORM = 65536

WITHOUT_SIZE: Mapping[str, str] = MappingProxyType(
    {
        "packed": f"{PACKED_SIDE}x{PACKED_SIDE} packed patches assumed",
        "image": f"{SIDE}x{SIDE} assumed",
        "video": f"{FRAMES} frames of {VIDEO_SIDE}x{VIDEO_SIDE} assumed",
        "frames": f"{FRAMES} frames of {VIDEO_SIDE}x{VIDEO_SIDE} assumed",
        "sound": f"a length of {SAMPLES}, or {WAVEFORM} samples of sound, assumed",
        "steps": f"a length of {SAMPLES} assumed",
    }
)
"""What is assumed of a model whose config names no size, by layout."""

# Images as a row of patches, as the pipeline packs them.
_PACKED = re.compile(
    r"(Bria(?!Fibo2)|Chroma|Flux|LTX|LongCatImage|Ovis|QwenImage|Nucleus|Ideogram|Krea2|SanaWMLTX2)\w*"
)
# Frames before channels.
_FRAMES = re.compile(r"(CogVideoX|ConsisID|AnyFlow)Transformer3DModel|UNetSpatioTemporalConditionModel")
_VIDEO = re.compile(
    r"\w*(3D|Motion|Video)\w*|AutoencoderKL(Allegro|CogVideoX|Cosmos|Magvit|Mochi|Wan|KVAEVideo|LTX2?|QwenImage\w*"
    r"|HunyuanImageRefiner|MiniMaxH3)|I2VGenXLUNet|AutoencoderVidTok|SparseControlNetModel"
    r"|Kandinsky6SRVAE|Wan\w+"
)
_SOUND = re.compile(
    r"UNet1DModel|StableAudio\w*|AutoencoderOobleck|LongCatAudioDiTVae|AutoencoderSAME|MMAudioVAE"
    r"|\w*AudioTokenizer|AutoencoderKL(KVAE|MiniMaxH3)Audio"
)
_AUTOENCODER = re.compile(r"\w*(Autoencoder|VAE|Vae)\w*")
# A spectrogram, `mel_bins` wide.
_SPECTROGRAM = "AutoencoderKLLTX2Audio"
# Sound without a dimension of channels.
_WITHOUT_CHANNELS = "MMAudioVAE"
# An image as a video of one frame: its convolutions take no more.
_ONE_FRAME = "AutoencoderKLQwenImage21"
_STEPS = re.compile(r"(AceStep\w*|LongCatAudioDiTTransformer|MiniMaxMusic3\w*)")
# Where the config names another number, or none.
_CHANNELS = {
    **dict.fromkeys(("AutoencoderKLMochi", "AutoencoderRAE", "ConsistencyDecoderVAE", "AutoencoderKLWan"), 3),
    **dict.fromkeys(("AutoencoderKLMiniMaxH3Audio", "MMAudioVAE"), 1),
}
_WIDTHS = (
    "caption_channels",
    "joint_attention_dim",
    "text_embed_dim",
    "text_dim",
    "text_in_dim",
    "context_in_dim",
    "text_embed_1_dim",
    "cap_feat_dim",
    "crossattn_proj_in_channels",
    "cross_attention_input_dim",
    "cross_attention_dim",
    "cond_token_dim",
    "encoder_hidden_size",
    "encoder_hid_dim",
)


def layout(request: InputRequest) -> str:
    """Return how the latents of a model are laid out: a key of `WITHOUT_SIZE`."""
    name = type(request.module).__name__
    for kind, pattern in (("frames", _FRAMES), ("sound", _SOUND), ("steps", _STEPS)):
        if pattern.fullmatch(name):
            return kind
    if "AutoencoderKL" not in name and _PACKED.fullmatch(name):
        return "packed"
    return "video" if _VIDEO.fullmatch(name) else "image"


def has_own_size(request: InputRequest) -> bool:
    """Return whether the config names the size of the latents."""
    return request.setting("sample_size", "sample_height") is not None


def latent_shape(request: InputRequest) -> tuple[int, ...]:
    """Return the shape of the main input."""
    kind, batch, name = layout(request), request.batch, type(request.module).__name__
    if name == _SPECTROGRAM:
        return (batch, _channels(request), SAMPLES, int(request.setting("mel_bins", default=SIDE)))
    channels = _channels(request)
    if kind == "packed":
        return (batch, PACKED_SIDE**2, channels)
    if kind == "image":
        return (batch, channels, *sides(request))
    if kind in ("video", "frames"):
        frames, (height, width) = frame_count(request), sides(request, _video_side(request))
        is_first = kind == "frames"
        return (
            (batch, frames, channels, height, width) if is_first else (batch, channels, frames, height, width)
        )
    length = request.setting("sample_size", default=WAVEFORM if _AUTOENCODER.fullmatch(name) else SAMPLES)
    if name == _WITHOUT_CHANNELS:
        return (batch, int(length))
    return (batch, channels, int(length)) if kind == "sound" else (batch, int(length), channels)


def _channels(request: InputRequest) -> int:
    name = type(request.module).__name__
    if name in _CHANNELS:
        return _CHANNELS[name]
    found = request.setting(
        "in_channels", "io_channels", "in_dim", "input_channels", "audio_channels", "num_channels"
    )
    if found is None:
        raise SourceError(f"{name}: its config names no number of channels: write a factory")
    return int(found) * (2 if request.setting("stereo", default=False) else 1)


def _video_side(request: InputRequest) -> int:
    """Return a side of which an autoencoder makes more than one row of latents, as reflection needs."""
    ratio = getattr(request.module, "spatial_compression_ratio", None)
    return max(VIDEO_SIDE, 2 * int(ratio or 1)) if _is_autoencoder(request) else VIDEO_SIDE


def _is_autoencoder(request: InputRequest) -> bool:
    return _AUTOENCODER.fullmatch(type(request.module).__name__) is not None


def sides(request: InputRequest, default: int = SIDE) -> tuple[int, int]:
    """Return height and width of the latents."""
    size = request.setting("sample_size", default=default)
    if isinstance(size, (tuple, list)):
        return int(size[0]), int(size[1])
    height, width = (
        request.setting("sample_height", default=size),
        request.setting("sample_width", default=size),
    )
    return int(height), int(width)


def frame_count(request: InputRequest) -> int:
    """Return the number of frames: of the latents, or of the video that an autoencoder encodes."""
    if type(request.module).__name__ == _ONE_FRAME:
        return 1
    if _is_autoencoder(request) and (kernel := getattr(request.module, "kernel", None)) is not None:
        return int(kernel[0])  # of a tile: it runs in tiles alone
    frames = request.setting("sample_frames", default=None)
    if frames is None and (clip := request.setting("clip_length", default=None)) is not None:
        return 2 * int(clip)  # the decoder decodes a clip together with the next one
    if frames is None and _is_autoencoder(request):
        # The first frame has a latent of its own, and each next latent is of as many frames.
        ratio = getattr(request.module, "temporal_compression_ratio", None) or request.setting(
            "scale_factor_temporal", default=1
        )
        return max(FRAMES, int(ratio) + 1)
    if frames is None:
        return FRAMES
    ratio = request.setting("temporal_compression_ratio", default=None)
    return int(frames) if ratio is None else (int(frames) - 1) // int(ratio) + 1


def patches(request: InputRequest) -> tuple[int, int, int]:
    """Return frames, rows and columns of the patches that the latents are cut into."""
    shape = latent_shape(request)
    size: Any = request.setting("patch_size", default=1)
    in_time = request.setting("patch_size_t", default=None)
    of_time, of_space = (size[0], size[1]) if isinstance(size, (tuple, list)) else (in_time or 1, size)
    frames = shape[1] if layout(request) == "frames" else shape[2] if len(shape) == 5 else 1
    return frames // of_time, shape[-2] // of_space, shape[-1] // of_space


def text_width(request: InputRequest) -> int | None:
    """Return the width of the embedded text; None if the config names none."""
    width = request.setting(*_WIDTHS)
    while isinstance(width, (tuple, list)):
        width = width[0]
    return None if width is None else int(width)
