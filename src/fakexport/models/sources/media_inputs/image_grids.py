"""Images as sequences of patches, with a grid: the number of rows and of columns (Qwen2-VL and similar)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fakexport._torch.operators.real_execution import real_execution
from fakexport.models.sources.source_error import first_line
from fakexport.models.sources.transformers.exporter_patches import computed_inputs
from fakexport.models.sources.transformers.input_request import InputRequest, Underivable

GRID = "image_grid_thw"
TOWER_GRID = "grid_thw"


# `_IN_ONE_BATCH`: towers that take all patches as a batch of one. `_FLAT`: towers that take flat patches,
# although their first layer is a 2-D convolution.
_IN_ONE_BATCH = frozenset({"paddleocr_vl_vision"})
_FLAT = frozenset({"hunyuan_vl_vision"})


def grid_layout(request: InputRequest, sides: list[int]) -> dict[str, torch.Tensor]:
    """Return the patches of one image per row, and the size of each image's grid.

    Raises:
        Underivable: it is unknown how the vision tower splits images into patches.
    """
    tower = grid_tower(request.module)
    if tower is None:
        raise Underivable(f"no part of the model has the input {TOWER_GRID}")
    patch, merge = _number(tower, request, "patch_size"), _merge(tower, request)
    grid = [1, *(max(size // (patch * merge), 1) * merge for size in sides)]
    pixels = request.floats(request.batch, grid[1] * grid[2], *_patch_shape(tower, patch))
    if not hasattr(request.config, "vlm_config"):  # ColQwen2 takes the patches of each image separately.
        pixels = pixels.flatten(0, 1)
    if request.config.model_type in _IN_ONE_BATCH:
        pixels = pixels.unsqueeze(0)
    is_tower = is_grid_tower(request)
    found = {
        next(iter(request.parameters)) if is_tower else "pixel_values": pixels,
        TOWER_GRID if is_tower else GRID: request.values(torch.tensor([grid] * request.batch)),
    }
    for name in ("image_merge_sizes", "merge_sizes"):
        if name in request.parameters:
            found[name] = request.ids(request.batch, value=merge)
    return found


def is_grid_tower(request: InputRequest) -> bool:
    """Return whether a model takes patches with a grid, but no text."""
    return TOWER_GRID in request.parameters and not {"input_ids", "inputs_embeds"} & request.parameters.keys()


def grid_tower(module: nn.Module) -> nn.Module | None:
    """Return the submodule whose inputs are image patches and the grid of each image, or None."""
    parts = module.modules()
    return next((part for part in parts if TOWER_GRID in inspect.signature(part.forward).parameters), None)


def positions_of(module: nn.Module, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the `position_ids` that a model would otherwise compute from its tokens."""
    rope_index = _rope_index(module)
    if rope_index is None or "position_ids" not in inspect.signature(module.forward).parameters:
        return {}
    mask = inputs.get("feature_attention_mask")
    known = {**inputs, **({} if mask is None else {"audio_seqlens": mask.sum(-1)})}
    names = [name for name in inspect.signature(rope_index).parameters if name in known]
    numbers = {
        name: known[name].tolist() if isinstance(known[name], torch.Tensor) else known[name] for name in names
    }
    with real_execution():
        try:
            found = rope_index(**{name: torch.tensor(value) for name, value in numbers.items()})[0]
        except Exception as error:  # Any error of the model.
            raise Underivable(f"position_ids cannot be computed: {first_line(error)}") from error
    return {"position_ids": found}


def counts_special_tokens(module: nn.Module) -> bool:
    """Return whether start and end tokens of images and audio count as positions (Qwen Omni)."""
    rope_index = _rope_index(module)
    return rope_index is not None and "audio_seqlens" in inspect.signature(rope_index).parameters


def _rope_index(module: nn.Module) -> Any:
    parts: tuple[Any, ...] = (module, getattr(module, "model", None))
    return next((part.get_rope_index for part in parts if hasattr(part, "get_rope_index")), None)


def computed_of(tower: nn.Module, known: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return real tensors that `transformers.exporters` computes for a vision tower from known values."""
    numbers = {name: value.tolist() for name, value in known.items()}
    with real_execution():
        try:
            return computed_inputs(tower, {name: torch.tensor(value) for name, value in numbers.items()})
        except Exception as error:  # Any error of a model that needs more than a grid.
            raise Underivable(
                f"the other inputs cannot be computed from {GRID} alone: {first_line(error)}"
            ) from error


def _number(tower: nn.Module, request: InputRequest, name: str, default: int | None = None) -> int:
    found = getattr(getattr(tower, "config", None), name, None)
    found = request.setting(name, default=default) if found is None else found
    if not isinstance(found, int):
        raise Underivable(f"the config has no {name}")
    return found


def _merge(tower: nn.Module, request: InputRequest) -> int:
    """Return the number n for a tower that merges squares of n x n patches into one token."""
    kernel = getattr(getattr(tower, "config", None), "merge_kernel_size", None)
    if isinstance(kernel, (list, tuple)):
        return int(kernel[0])
    return _number(tower, request, "spatial_merge_size", default=getattr(tower, "merge_size", 1))


def _patch_shape(tower: nn.Module, patch: int) -> tuple[int, ...]:
    """Return the shape of a patch for the tower's first layer: an image for a 2-D convolution, else flat."""
    layers = [part for part in tower.modules() if isinstance(part, (nn.Linear, nn.Conv2d, nn.Conv3d))]
    # In the tower of Qwen 3 Omni, layers that merge patches are listed before the layer that takes the
    # patches.
    match next((part for part in layers if isinstance(part, nn.Conv3d)), next(iter(layers), None)):
        case nn.Conv3d() as first:
            return (first.in_channels * first.kernel_size[0] * patch * patch,)
        case nn.Conv2d() as first:
            shape = (first.in_channels, patch, patch)
            is_flat = getattr(getattr(tower, "config", None), "model_type", None) in _FLAT
            return (math.prod(shape),) if is_flat else shape
        case nn.Linear() as first:
            return (first.in_features,)
    raise Underivable("the vision tower has no layer that takes patches")
