"""Images as rows of patches with a grid that says where they are: Qwen2-VL and its kind."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from fakexport._torch.real_execution import real_execution
from fakexport.sources.image_inputs import height_and_width
from fakexport.sources.input_request import InputRequest, Underivable
from fakexport.sources.source_error import first_line

GRID = "image_grid_thw"


def image_grid_inputs(
    request: InputRequest, text: torch.Tensor, token: int
) -> tuple[dict[str, torch.Tensor], str]:
    """Return the inputs of one image per row of text, which takes the place of its first tokens; and a note.

    No program can compute what depends on the values of the grid: positions of tokens and patches, lengths of
    sequences, windows. So these are inputs too, computed here for real as `transformers.exporters` prepares
    them. They depend on no weight.

    Args:
        request: Request of a model whose vision tower takes `grid_thw`.
        text: Token ids that follow the image.
        token: The placeholder token.
    Raises:
        Underivable: The tower does not say how it cuts images into patches, or takes more than a grid.
    """
    tower = _tower(request.module)
    patch = _number(tower, request, "patch_size")
    merge = _number(tower, request, "spatial_merge_size", default=1)
    rows, columns = (max(size // (patch * merge), 1) * merge for size in height_and_width(request))
    tokens_per_row = rows * columns // merge**2
    ids = torch.cat([request.ids(request.batch, tokens_per_row, value=token), text], dim=1)
    with real_execution():
        grid = torch.tensor([[1, rows, columns]] * request.batch)
        is_image = (torch.arange(ids.shape[1]) < tokens_per_row).repeat(request.batch, 1)
        try:
            prepared = _of_text(request.module, is_image, token, grid) | _of_tower(tower, grid)
        except Exception as error:  # whatever a model raises that needs more than a grid
            raise Underivable(f"{GRID} is not enough: {first_line(error)}") from error
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": _patches(request, rows * columns, _patch_shape(tower, patch)),
        **_merge_sizes(request, merge),
        **{name: request.values(value) for name, value in {GRID: grid, **prepared}.items()},
    }
    return inputs, (
        f"one image of {columns * patch} x {rows * patch} pixels per row; {', '.join(prepared)} are inputs "
        f"of the program: transformers.exporters.utils.precompute_export_inputs computes them from {GRID}"
    )


def _tower(module: nn.Module) -> nn.Module:
    for part in module.modules():
        if "grid_thw" in inspect.signature(part.forward).parameters:
            return part
    raise Underivable(f"no part of the model takes {GRID.removeprefix('image_')}")


def _number(tower: nn.Module, request: InputRequest, name: str, default: int | None = None) -> int:
    found = getattr(getattr(tower, "config", None), name, None)
    found = request.setting(name, default=default) if found is None else found
    if not isinstance(found, int):
        raise Underivable(f"the config has no {name}")
    return found


def _of_text(module: nn.Module, is_image: torch.Tensor, token: int, grid: torch.Tensor) -> dict[str, Any]:
    """Return the positions of the tokens, which are in one, two or three dimensions."""
    parts: tuple[Any, ...] = (module, getattr(module, "model", None))
    rope_index = next((part.get_rope_index for part in parts if hasattr(part, "get_rope_index")), None)
    if rope_index is None:
        return {}
    known = {
        "input_ids": is_image * token,
        "attention_mask": torch.ones_like(is_image, dtype=torch.long),
        "mm_token_type_ids": is_image.long(),
        GRID: grid,
    }
    taken = inspect.signature(rope_index).parameters
    return {"position_ids": rope_index(**{name: known[name] for name in taken if name in known})[0]}


def _of_tower(tower: nn.Module, grid: torch.Tensor) -> dict[str, torch.Tensor]:
    from transformers.exporters.utils import precompute_export_inputs

    inputs: dict[str, Any] = {"grid_thw": grid}
    precompute_export_inputs(tower, inputs)
    del inputs["grid_thw"]
    return {f"image_{name}": value for name, value in inputs.items() if isinstance(value, torch.Tensor)}


def _patch_shape(tower: nn.Module, patch: int) -> tuple[int, ...]:
    """Return the shape of one patch as the tower's first layer takes it: flat, or an image for a 2-D
    convolution.
    """
    first = next((part for part in tower.modules() if isinstance(part, (nn.Linear, *_CONVOLUTIONS))), None)
    match first:
        case nn.Conv3d():
            return (first.in_channels * first.kernel_size[0] * patch * patch,)
        case nn.Conv2d():
            return (first.in_channels, patch, patch)
        case nn.Linear():
            return (first.in_features,)
    raise Underivable("the vision tower has no layer that takes patches")


def _patches(request: InputRequest, count: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the patches of all images, one after the other; a retriever (ColQwen2) takes them by image."""
    if hasattr(request.config, "vlm_config"):
        return request.floats(request.batch, count, *shape)
    return request.floats(request.batch * count, *shape)


def _merge_sizes(request: InputRequest, merge: int) -> dict[str, torch.Tensor]:
    if "image_merge_sizes" not in request.parameters:
        return {}
    return {"image_merge_sizes": request.ids(request.batch, value=merge)}


_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)
