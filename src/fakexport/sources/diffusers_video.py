"""Inputs of the classes of diffusers that make videos.

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
    never,
    positions,
    present,
    steps_in_dtype,
)
from fakexport.sources.diffusers_sizes import FRAMES, SIDE, VIDEO_SIDE, latent_shape, sides, text_width
from fakexport.sources.input_request import InputRequest

# Pixels along a side for each latent, in pipelines whose transformer takes something in pixels.
_PIXELS = 8
# Frames that Helios remembers, from the nearest to the farthest, as its pipeline passes them: the short
# memory has the first frame in addition.
_SHORT, _MID, _LONG = 2, 2, 16
# The same of FramePack: the first frame and the last one; then at half, and at a quarter of the detail.
_CLEAN, _HALF, _QUARTER = 2, 2, 16
# Other ways to tell SANA-WM of its camera, which its pipeline does not go, and another name of its mask.
_OF_OTHER_CAMERAS = (
    "encoder_attention_mask",
    "data_info",
    "cam_pos_embeds",
    "pos_embeds",
    "raymats",
    "chunk_size",
)
# The last frame before the coarse memories of FramePack.
_COARSE = 1 + FRAMES
_FACE_SIDE = 512
_MEMORY = "has_multi_term_memory_patch"


def _conditioned(request: InputRequest, channels: int) -> int:
    """Return the channels of latents, a condition of the same size, and a mask."""
    return 2 * channels + 1


def _channels_last(side: int, is_always: bool = False) -> Builder:
    """Return a builder of latents with frames first and channels last, conditioned if the config says so."""

    def build(request: InputRequest) -> torch.Tensor:
        channels = int(request.setting("in_visual_dim"))
        if is_always or request.setting("visual_cond", default=False):
            channels = _conditioned(request, channels)
        return request.floats(request.batch, FRAMES, side, side, channels)

    return build


def _rope_positions(request: InputRequest) -> list[torch.Tensor]:
    _, rows, columns = request.setting("patch_size")
    return [positions(request, size) for size in (FRAMES, SIDE // int(rows), SIDE // int(columns))]


def _history(frames: int, setting: str | None = None) -> Builder:
    """Return a builder of the latents of earlier frames; none where the config says that it takes none."""

    def build(request: InputRequest) -> torch.Tensor | None:
        if setting is not None and not request.setting(setting, default=True):
            return None
        batch, channels, _, height, width = latent_shape(request)
        return request.floats(batch, channels, frames, height, width)

    return build


def _numbers(first: int, count: int, setting: str | None = None) -> Builder:
    """Return a builder of the numbers of some frames, in one row for the whole batch."""

    def build(request: InputRequest) -> torch.Tensor | None:
        if setting is not None and not request.setting(setting, default=True):
            return None
        return (positions(request, count) + first)[None]

    return build


def _row(first: int, count: int) -> Builder:
    """Return a builder of the numbers of some frames, for the whole batch."""
    return lambda request: positions(request, count) + first


def _short_numbers(request: InputRequest) -> torch.Tensor | None:
    """Return the numbers of the first frame and of the last one before those that are made."""
    if not request.setting(_MEMORY, default=True):
        return None
    return (positions(request, 2) * (_LONG + _MID + 1))[None]


def _clean_numbers(request: InputRequest) -> torch.Tensor:
    """Return the numbers of the first frame, and of the last one before the two coarse memories."""
    return positions(request, 2) * _COARSE


def _image_tokens(request: InputRequest) -> torch.Tensor:
    return request.floats(request.batch, 729, int(request.setting("image_proj_dim")))


def _guidance(request: InputRequest) -> torch.Tensor | None:
    return request.floats(request.batch) if request.setting("guidance_embeds", default=False) else None


def _sparse_condition(channels: str | int) -> Builder:
    """Return a builder of the frames that a sparse ControlNet is given: latents, or images."""

    def build(request: InputRequest) -> torch.Tensor:
        frames, side = latent_shape(request)[2], sides(request, VIDEO_SIDE)
        is_latent = request.setting("use_simplified_condition_embedding", default=False)
        height, width = side if is_latent else (side[0] * _PIXELS, side[1] * _PIXELS)
        count = channels if isinstance(channels, int) else int(request.setting(channels))
        return request.floats(request.batch, count, frames, height, width)

    return build


def _text_of_each_frame(request: InputRequest) -> torch.Tensor | None:
    width, frames = text_width(request), latent_shape(request)[2]
    return None if width is None else request.floats(request.batch * frames, request.sequence, width)


def _second_text(request: InputRequest) -> torch.Tensor | None:
    width = request.setting("text_embed_dim_t5")
    return None if width is None else request.floats(request.batch, request.sequence, int(width))


def _padding(request: InputRequest) -> torch.Tensor:
    """Return where an image of another shape was padded, one mask of pixels for the whole batch."""
    height, width = sides(request, VIDEO_SIDE)
    return request.floats(1, 1, height * _PIXELS, width * _PIXELS)


def _cosmos_latents(extra: int) -> Builder:
    """Return a builder of latents: the config counts them with a mask of conditions and one of padding."""

    def build(request: InputRequest) -> torch.Tensor:
        channels = int(request.setting("latent_channels")) - extra
        return request.floats(request.batch, channels, FRAMES, VIDEO_SIDE, VIDEO_SIDE)

    return build


def _cosmos_text(request: InputRequest) -> torch.Tensor:
    is_projected = request.setting("use_crossattn_projection", default=False)
    width = request.setting("crossattn_proj_in_channels" if is_projected else "text_embed_dim")
    return request.floats(request.batch, request.sequence, int(width))


def _frame_steps(request: InputRequest) -> torch.Tensor:
    """Return a time step for each frame, in one channel."""
    return torch.zeros(request.batch, 1, latent_shape(request)[2], device=request.device)


def _rays(request: InputRequest) -> torch.Tensor:
    """Return the pose and the lens of the camera for each frame: a matrix of 4x4, and 4 numbers."""
    frames = latent_shape(request)[2]
    pose = torch.eye(4, device=request.device, dtype=request.dtype).reshape(16)
    lens = torch.ones(4, device=request.device, dtype=request.dtype)
    return torch.cat([pose, lens]).expand(request.batch, frames, 20).clone()


def _plucker(request: InputRequest) -> torch.Tensor:
    batch, _, *size = latent_shape(request)
    return request.floats(batch, int(request.setting("chunk_plucker_channels")), *size)


def _pose_latents(request: InputRequest) -> torch.Tensor:
    """Return the latents of the poses: of each frame but the reference, which is the first."""
    batch, _, frames, height, width = latent_shape(request)
    return request.floats(batch, int(request.setting("latent_channels")), frames - 1, height, width)


def _faces(request: InputRequest) -> torch.Tensor:
    """Return the faces, of each frame in pixels: 4 for each latent but the first one."""
    frames = 4 * (latent_shape(request)[2] - 2) + 1
    side = int(request.setting("motion_encoder_size", default=_FACE_SIDE))
    return request.floats(request.batch, 3, frames, side, side)


VIDEOS: Mapping[str, Mapping[str, Builder]] = MappingProxyType(
    {
        "Kandinsky5Transformer3DModel": {
            "hidden_states": _channels_last(SIDE),
            "timestep": steps_in_dtype,
            "encoder_hidden_states": floats(TEXT, "in_text_dim"),
            "visual_rope_pos": _rope_positions,
            "text_rope_pos": lambda request: positions(request, request.sequence),
            # Of 480 to 854 pixels along both sides.
            "scale_factor": lambda request: (1.0, 2.0, 2.0),
        },
        "Kandinsky6Transformer3DModel": {
            "hidden_states": _channels_last(VIDEO_SIDE),
            "encoder_hidden_states": floats(TEXT, "in_text_dim"),
            "audio_hidden_states": floats(LENGTH, "in_audio_dim"),
            "encoder_attention_mask": present(TEXT),
        },
        "Kandinsky6SRTransformer3DModel": {"hidden_states": _channels_last(VIDEO_SIDE, is_always=True)},
        "Kandinsky6SRLatentUpscalerBank": {
            "latents": lambda request: request.floats(
                request.batch, int(request.setting("in_channels")), FRAMES, VIDEO_SIDE, VIDEO_SIDE
            ),
            "scale": lambda request: int(request.setting("scales")[0]),
        },
        "HeliosTransformer3DModel": {
            "indices_hidden_states": _numbers(_LONG + _MID + 2, FRAMES),
            "indices_latents_history_short": _short_numbers,
            "indices_latents_history_mid": _numbers(_LONG + 1, _MID, _MEMORY),
            "indices_latents_history_long": _numbers(1, _LONG, _MEMORY),
            "latents_history_short": _history(_SHORT, _MEMORY),
            "latents_history_mid": _history(_MID, _MEMORY),
            "latents_history_long": _history(_LONG, _MEMORY),
        },
        "HunyuanVideoFramepackTransformer3DModel": {
            "image_embeds": _image_tokens,
            "indices_latents": _row(1, FRAMES),
            "guidance": _guidance,
            "latents_clean": _history(_CLEAN),
            "indices_latents_clean": _clean_numbers,
            "latents_history_2x": _history(_HALF),
            "indices_latents_history_2x": _row(_COARSE + 1, _HALF),
            "latents_history_4x": _history(_QUARTER),
            "indices_latents_history_4x": _row(_COARSE + 1 + _HALF, _QUARTER),
        },
        "SparseControlNetModel": {
            "encoder_hidden_states": _text_of_each_frame,
            "controlnet_cond": _sparse_condition("conditioning_channels"),
            "conditioning_mask": _sparse_condition(1),
        },
        "CosmosTransformer3DModel": {
            "padding_mask": lambda request: (
                _padding(request) if request.setting("concat_padding_mask", default=False) else None
            )
        },
        "CosmosControlNetModel": {
            "controls_latents": _cosmos_latents(2),
            "latents": _cosmos_latents(2),
            "encoder_hidden_states": _cosmos_text,
            "condition_mask": lambda request: request.floats(
                request.batch, 1, FRAMES, VIDEO_SIDE, VIDEO_SIDE
            ),
            "padding_mask": _padding,
        },
        "LatteTransformer3DModel": {"encoder_attention_mask": never},
        "EasyAnimateTransformer3DModel": {"encoder_hidden_states_t5": _second_text},
        "LTX2VideoDiffusionDecoderModel": {"z": floats("latent_channels", FRAMES, 8, 8)},
        "SanaWMTransformer3DModel": {
            "timestep": _frame_steps,
            "mask": present(TEXT),
            **dict.fromkeys(_OF_OTHER_CAMERAS, never),
            "camera_conditions": _rays,
            "chunk_plucker": _plucker,
        },
        "WanAnimateTransformer3DModel": {
            "pose_hidden_states": _pose_latents,
            "face_pixel_values": _faces,
        },
    }
)
