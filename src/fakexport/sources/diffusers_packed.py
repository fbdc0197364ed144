"""Inputs of the classes of diffusers whose pipelines pack text and images, or sounds, into one sequence.

Seen on diffusers 0.42.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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
from fakexport.sources.diffusers_sizes import PACKED_SIDE, VIDEO_SIDE
from fakexport.sources.input_request import InputRequest

_IMAGE_TOKENS = PACKED_SIDE**2
# A video as long as an image of PACKED_SIDE: frames, rows, columns of patches.
_GRID = (4, 16, 16)

# What tells the tokens of Ideogram 4 apart, and where the positions of its images begin.
_OF_IMAGE, _OF_TEXT = 2, 3
_FIRST_OF_IMAGE = 65536
# How MiniMax-H3 tags the rows of a sequence.
_VIDEO_TAG, _TEXT_TAG, _AUDIO_TAG = 0, 1, 2


def _grid(request: InputRequest, *sizes: int) -> torch.Tensor:
    """Return the place of each cell, an int64 for each axis, the last axis running fastest."""
    axes = torch.meshgrid(*(positions(request, size) for size in sizes), indexing="ij")
    return torch.stack(axes, dim=-1).reshape(-1, len(sizes))


def _batched(request: InputRequest, one: torch.Tensor) -> torch.Tensor:
    return one.expand(request.batch, *one.shape).clone()


def _text_and_image(width: str) -> Builder:
    """Return a builder of a row for each token of text and image, which another input masks."""

    def build(request: InputRequest) -> torch.Tensor:
        tokens = request.sequence + _IMAGE_TOKENS
        return request.floats(request.batch, tokens, int(request.setting(width)))

    return build


def _ideogram_positions(request: InputRequest) -> torch.Tensor:
    text = positions(request, request.sequence)[:, None].expand(-1, 3)
    image = _grid(request, 1, PACKED_SIDE, PACKED_SIDE) + _FIRST_OF_IMAGE
    return _batched(request, torch.cat([text, image]))


def _ideogram_roles(request: InputRequest) -> torch.Tensor:
    text = request.ids(request.batch, request.sequence, value=_OF_TEXT)
    return torch.cat([text, request.ids(request.batch, _IMAGE_TOKENS, value=_OF_IMAGE)], dim=1)


def _krea_positions(request: InputRequest) -> torch.Tensor:
    text = torch.zeros(request.sequence, 3, device=request.device)
    return torch.cat([text, _grid(request, 1, PACKED_SIDE, PACKED_SIDE).float()])


def _flux3_text_positions(request: InputRequest) -> torch.Tensor:
    return _grid(request, 1, 1, 1, request.sequence).float()


def _flux3_image_positions(number: int) -> Builder:
    """Return a builder of the positions of an image: 0 is the one that is made, -1 the first reference."""

    def build(request: InputRequest) -> torch.Tensor:
        places = _grid(request, 1, PACKED_SIDE, PACKED_SIDE, 1).float()
        return places + torch.tensor([0.0, 0.0, 0.0, float(number)], device=request.device)

    return build


def _flux3_target(request: InputRequest) -> torch.Tensor | None:
    return steps(request) if request.setting("flow_map", default=False) else None


def _qwen_slots(request: InputRequest) -> torch.Tensor:
    """Return which tokens of the text stand for an image: one for each 4 patches of it, behind the text."""
    text = request.ids(request.batch, request.sequence)
    return torch.cat([text, request.ids(request.batch, _IMAGE_TOKENS // 4, value=1)], dim=1).bool()


def _joy_side(request: InputRequest) -> int:
    return VIDEO_SIDE // int(request.setting("patch_size")[-1])


def _joy_patches(request: InputRequest) -> torch.Tensor:
    """Return the patches of the image that is made, and behind it those of a reference."""
    patches = 2 * _joy_side(request) ** 2
    return request.floats(
        request.batch, patches, int(request.setting("in_channels")), *map(int, request.setting("patch_size"))
    )


def _joy_shapes(request: InputRequest) -> list[list[tuple[int, int, int]]]:
    side = _joy_side(request)
    return [[(1, side, side)] * 2 for _ in range(request.batch)]


def _ltx_text(width: str) -> Builder:
    """Return a builder of the text, in this width where the model does not project it."""

    def build(request: InputRequest) -> torch.Tensor:
        is_projected = request.setting("use_prompt_embeddings", default=True)
        size = request.setting("caption_channels" if is_projected else width)
        return request.floats(request.batch, request.sequence, int(size))

    return build


def _ltx_video_places(request: InputRequest) -> torch.Tensor:
    rope: Any = request.module.get_submodule("rope")
    found: torch.Tensor = rope.prepare_video_coords(request.batch, *_GRID, torch.device(request.device))
    return found


def _ltx_audio_places(request: InputRequest) -> torch.Tensor:
    rope: Any = request.module.get_submodule("audio_rope")
    found: torch.Tensor = rope.prepare_audio_coords(request.batch, LENGTH, torch.device(request.device))
    return found.clone()


def _h3_rows(request: InputRequest) -> tuple[int, int, int]:
    """Return the number of rows of text, sound and video, in this order."""
    frames, rows, columns = _GRID
    return request.sequence, LENGTH, frames * rows * columns


def _h3_videos(request: InputRequest) -> torch.Tensor:
    width = int(request.setting("in_channels"))
    for size in request.setting("patch_size"):
        width *= int(size)
    return request.floats(1, _h3_rows(request)[2], width)


def _h3_indices(part: int) -> Builder:
    def build(request: InputRequest) -> torch.Tensor:
        counts = _h3_rows(request)
        return positions(request, counts[part]) + sum(counts[:part])

    return build


def _h3_tags(request: InputRequest) -> torch.Tensor:
    tags = zip(_h3_rows(request), (_TEXT_TAG, _AUDIO_TAG, _VIDEO_TAG), strict=True)
    return torch.cat([request.ids(count, value=tag) for count, tag in tags])


def _h3_step_of_row(request: InputRequest) -> torch.Tensor:
    counts = zip(_h3_rows(request), (0, 1, 0), strict=True)
    return torch.cat([request.ids(count, value=step) for count, step in counts])


def _h3_positions(request: InputRequest) -> torch.Tensor:
    """Return frame, row and column of each row of the sequence, in float64 as the pipeline passes it."""
    text, sound, _ = _h3_rows(request)
    nowhere = positions(request, max(text, sound)) * 0
    in_time = [
        torch.stack([positions(request, each), nowhere[:each], nowhere[:each]], 1) for each in (text, sound)
    ]
    return torch.cat([*in_time, _grid(request, *_GRID)]).double()


def _h3_only(width: str, part: int) -> Builder:
    return lambda request: request.floats(1, _h3_rows(request)[part], int(request.setting(width)))


PACKED: Mapping[str, Mapping[str, Builder]] = MappingProxyType(
    {
        "Ideogram4Transformer2DModel": {
            "hidden_states": _text_and_image("in_channels"),
            "timestep": steps_in_dtype,
            "encoder_hidden_states": _text_and_image("llm_features_dim"),
            "position_ids": _ideogram_positions,
            "segment_ids": lambda request: request.ids(
                request.batch, request.sequence + _IMAGE_TOKENS, value=1
            ),
            "indicator": _ideogram_roles,
        },
        "Krea2Transformer2DModel": {
            "timestep": steps_in_dtype,
            "encoder_hidden_states": floats(TEXT, "num_text_layers", "text_hidden_dim"),
            "position_ids": _krea_positions,
            "encoder_attention_mask": present(TEXT),
        },
        "Flux3Transformer2DModel": {
            "img_ids": _flux3_image_positions(0),
            "txt_ids": _flux3_text_positions,
            # Passed where an image is edited.
            "image_cond_hidden_states": floats(_IMAGE_TOKENS, "cond_in_channels"),
            "image_cond_ids": _flux3_image_positions(-1),
            "target_timestep": _flux3_target,
        },
        "QwenImage21Transformer2DModel": {"img_mask": _qwen_slots},
        "JoyImageEditPlusTransformer3DModel": {
            "hidden_states": _joy_patches,
            "encoder_hidden_states_mask": ids(TEXT, value=1),
            "shape_list": _joy_shapes,
        },
        "LTX2VideoTransformer3DModel": {
            "audio_hidden_states": floats(LENGTH, "audio_in_channels"),
            "encoder_hidden_states": _ltx_text("cross_attention_dim"),
            "audio_encoder_hidden_states": _ltx_text("audio_cross_attention_dim"),
            "sigma": steps,
            "audio_encoder_attention_mask": ids(TEXT, value=1),
            "encoder_attention_mask": ids(TEXT, value=1),
            "video_coords": _ltx_video_places,
            "audio_coords": _ltx_audio_places,
            "use_cross_timestep": lambda request: True,
        },
        "MiniMaxH3Transformer3DModel": {
            "hidden_states": _h3_videos,
            "audio_hidden_states": _h3_only("audio_in_channels", 1),
            "encoder_hidden_states": _h3_only("text_dim", 0),
            # Of the videos and their text, and of the sounds, whose schedule is another.
            "timestep": lambda request: torch.zeros(2, device=request.device),
            "timestep_indices": _h3_step_of_row,
            "token_tags": _h3_tags,
            "position_ids": _h3_positions,
            "video_indices": _h3_indices(2),
            "audio_indices": _h3_indices(1),
            "text_indices": _h3_indices(0),
        },
    }
)
