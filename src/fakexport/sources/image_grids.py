"""Images as rows of patches with a grid that says where they are: Qwen2-VL and its kind."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fakexport._torch.real_execution import real_execution
from fakexport.sources.exporter_patches import computed_inputs, computed_note
from fakexport.sources.feature_counts import features_per_row, run_encoders, runs_without_values
from fakexport.sources.fixed_numbers import as_numbers, fixed_note
from fakexport.sources.image_inputs import height_and_width
from fakexport.sources.input_request import InputRequest, Underivable
from fakexport.sources.source import ExampleInputs
from fakexport.sources.source_error import SourceError, first_line

GRID = "image_grid_thw"
_MERGE_SIZES = "image_merge_sizes"
_COUNTS = "images_per_sample"
TOWER_GRID = "grid_thw"

# Towers to which the model around them passes all patches as a batch of one.
_IN_ONE_BATCH = frozenset({"paddleocr_vl_vision"})

# Towers with a 2-D convolution that take flat patches all the same.
_FLAT = frozenset({"hunyuan_vl_vision"})

# What of a grid is fixed in a program that reads it: also the lengths, whose number depends on its values.
_FIXED = ("grid_thw", "merge_sizes", "cu_seqlens")


def image_grid_inputs(request: InputRequest, text: torch.Tensor, token: int) -> tuple[dict[str, Any], str]:
    """Return the inputs of one image per row of text, which takes the place of its first tokens; and a note.

    No program can compute what depends on the values of the grid: positions of tokens and patches, lengths of
    sequences, windows. So these are inputs too, computed here for real as `transformers.exporters` prepares
    them. They depend on no weight.

    Raises:
        Underivable: The tower does not say how it cuts images into patches, or takes more than a grid.
    """
    if _COUNTS in request.parameters:
        raise Underivable(f"{GRID} is not enough: {_COUNTS} counts the images to make with it (GLM-Image)")
    tower = _tower(request.module)
    patch = _number(tower, request, "patch_size")
    merge = _merge(tower, request)
    rows, columns = _rows_and_columns(request, patch, merge)
    with real_execution():
        grid = torch.tensor([[1, rows, columns]] * request.batch)
        try:
            computed = computed_inputs(tower, {TOWER_GRID: grid})
        except Exception as error:  # whatever a model raises that needs more than a grid
            raise Underivable(f"{GRID} is not enough: {first_line(error)}") from error
    of_tower = {f"image_{name}": value for name, value in computed.items()}
    of_image = {
        "pixel_values": _patches(request, rows * columns, _patch_shape(tower, patch)),
        **_merge_sizes(request, merge),
        **{name: request.values(value) for name, value in {GRID: grid, **of_tower}.items()},
    }
    count = rows * columns // merge**2
    try:
        inputs, prepared = _with_tokens(request, text, [token] * count, grid, of_image)
    except Underivable as error:
        other = _features_of(request, text, token, of_image)
        if other in (None, count):
            raise
        try:
            inputs, prepared = _with_tokens(request, text, [token] * other, grid, of_image)
        except Underivable:
            raise error from None
    if _is_complete(request, inputs):
        inputs = _as_traceable(request, inputs, of_tower)
    prepared |= {
        name: value for name, value in of_tower.items() if isinstance(inputs.get(name), torch.Tensor)
    }
    note = f"one image of {columns * patch} x {rows * patch} pixels per row"
    if prepared:
        note += f"; {computed_note(prepared, GRID)}"
    return inputs, note


def _with_tokens(
    request: InputRequest,
    text: torch.Tensor,
    tokens: list[int],
    grid: torch.Tensor,
    of_image: Mapping[str, torch.Tensor],
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the inputs of a text that begins with the tokens of an image, and the positions among them.

    Raises:
        Underivable: The model does not take that many of them.
    """
    before, after = around(request, "vision")
    with real_execution():
        image = torch.tensor([[*before, *tokens, *after]] * request.batch)
        try:
            prepared = _of_text(request.module, functional.pad(image, (0, text.shape[1])), tokens[0], grid)
        except Exception as error:  # whatever a model raises that counts tokens
            raise Underivable(f"{GRID} is not enough: {first_line(error)}") from error
    ids = torch.cat([request.values(image), text], dim=1)
    positions = {name: request.values(value) for name, value in prepared.items()}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **of_image, **positions}
    _is_complete(request, inputs)
    return inputs, prepared


def _features_of(
    request: InputRequest, text: torch.Tensor, token: int, of_image: Mapping[str, torch.Tensor]
) -> int | None:
    """Return how many features the model makes of an image, where it gets that far: HunYuan-VL adds some."""
    ids = torch.cat([request.ids(request.batch, 1, value=token), text], dim=1)
    run = run_encoders(request, {"input_ids": ids, "attention_mask": torch.ones_like(ids), **of_image})
    try:
        return features_per_row(request, run, "vision")
    except Underivable:
        return None


def _is_complete(request: InputRequest, inputs: Mapping[str, Any]) -> bool:
    """Return whether the model gets to its language model. An image whose features do not fit the text is
    refused: a trace would leave that to the program's run.

    Raises:
        Underivable: The model itself raises on these inputs, and not for values that fakes lack.
    """
    run = run_encoders(request, inputs)
    if type(run.error) in (ValueError, RuntimeError):
        raise Underivable(f"eager mode fails on an image too: {run.reason}")
    return run.is_complete


def _as_traceable(
    request: InputRequest, inputs: Mapping[str, Any], of_tower: Iterable[str]
) -> dict[str, Any]:
    """Return the inputs with which a trace gets to the language model: the same, unless the model asks for
    values of the grid where `transformers.exporters` computes nothing. The grid is then numbers.
    """
    if runs_without_values(request, inputs):
        return dict(inputs)
    fixed = [name for name in inputs if name.endswith(_FIXED)]
    numbers = {name: as_numbers(request.module, name, inputs[name], inputs[name].tolist()) for name in fixed}
    return {name: value for name, value in inputs.items() if name not in of_tower} | numbers


def positions_of(module: nn.Module, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return `position_ids` of a model that reads its tokens for them, where nothing else gives any."""
    rope_index = _rope_index(module)
    if rope_index is None or "position_ids" not in inspect.signature(module.forward).parameters:
        return {}
    names = [name for name in inspect.signature(rope_index).parameters if name in inputs]
    numbers = {
        name: inputs[name].tolist() if isinstance(inputs[name], torch.Tensor) else inputs[name]
        for name in names
    }
    with real_execution():
        found = rope_index(**{name: torch.tensor(value) for name, value in numbers.items()})[0]
    return {"position_ids": found}


def _rope_index(module: nn.Module) -> Any:
    parts: tuple[Any, ...] = (module, getattr(module, "model", None))
    return next((part.get_rope_index for part in parts if hasattr(part, "get_rope_index")), None)


def is_grid_tower(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Return whether a `forward` takes patches and their grid, and nothing that is text."""
    return TOWER_GRID in parameters and not {"input_ids", "inputs_embeds"} & parameters.keys()


def grid_tower_inputs(request: InputRequest) -> ExampleInputs:
    """Return the patches of one image per row of the batch, with their grid and what is computed of it.

    Raises:
        SourceError: As `image_grid_inputs` raises `Underivable`.
    """
    tower, pixels = request.module, next(iter(request.parameters))
    try:
        patch = _number(tower, request, "patch_size")
        merge = _merge(tower, request)
        rows, columns = _rows_and_columns(request, patch, merge)
        with real_execution():
            known = {TOWER_GRID: torch.tensor([[1, rows, columns]] * request.batch)}
            if "merge_sizes" in request.parameters:
                known["merge_sizes"] = torch.tensor([merge] * request.batch)
            prepared = computed_inputs(tower, known)
        patches = request.floats(request.batch * rows * columns, *_patch_shape(tower, patch))
        if request.config.model_type in _IN_ONE_BATCH:
            patches = patches.unsqueeze(0)
        values = {name: request.values(value) for name, value in {**known, **prepared}.items()}
        inputs = {pixels: patches, **values}
        if _is_complete(request, {pixels: patches, **{name: values[name] for name in known}}):
            inputs = _as_traceable(request, inputs, prepared)
    except Exception as error:  # whatever a model raises that needs more than a grid
        raise SourceError(
            f"{type(tower).__name__}: {TOWER_GRID} is not enough: {first_line(error)}"
        ) from error
    note = f"{request.batch} images of {columns * patch} x {rows * patch} pixels"
    computed = [name for name in prepared if isinstance(inputs.get(name), torch.Tensor)]
    fixed = [name for name, value in inputs.items() if isinstance(value, list)]
    more = fixed_note(fixed) if fixed else computed_note(computed, TOWER_GRID)
    return ExampleInputs(kwargs=inputs, assumptions=(f"{note}; {more}",))


def _rows_and_columns(request: InputRequest, patch: int, merge: int) -> tuple[int, int]:
    rows, columns = (max(size // (patch * merge), 1) * merge for size in height_and_width(request))
    return rows, columns


def _tower(module: nn.Module) -> nn.Module:
    for part in module.modules():
        if TOWER_GRID in inspect.signature(part.forward).parameters:
            return part
    raise Underivable(f"no part of the model takes {TOWER_GRID}")


def _number(tower: nn.Module, request: InputRequest, name: str, default: int | None = None) -> int:
    found = getattr(getattr(tower, "config", None), name, None)
    found = request.setting(name, default=default) if found is None else found
    if not isinstance(found, int):
        raise Underivable(f"the config has no {name}")
    return found


def _merge(tower: nn.Module, request: InputRequest) -> int:
    """Return the side of the squares of patches that one token stands for."""
    kernel = getattr(getattr(tower, "config", None), "merge_kernel_size", None)
    if isinstance(kernel, (list, tuple)):
        return int(kernel[0])
    return _number(tower, request, "spatial_merge_size", default=getattr(tower, "merge_size", 1))


def around(request: InputRequest, role: str) -> tuple[list[int], list[int]]:
    """Return the tokens that Qwen Omni needs before and after those of an image or a sound."""
    rope_index = _rope_index(request.module)
    if rope_index is None or "audio_seqlens" not in inspect.signature(rope_index).parameters:
        return [], []
    start, end = (getattr(request.config, f"{role}_{name}_token_id", 0) for name in ("start", "end"))
    return [start], [end]


def _of_text(module: nn.Module, ids: torch.Tensor, token: int, grid: torch.Tensor) -> dict[str, Any]:
    """Return the positions of the tokens, which are in one, two or three dimensions."""
    rope_index = _rope_index(module)
    if rope_index is None:
        return {}
    known = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == token).long(),
        GRID: grid,
    }
    taken = inspect.signature(rope_index).parameters
    return {"position_ids": rope_index(**{name: known[name] for name in taken if name in known})[0]}


def _patch_shape(tower: nn.Module, patch: int) -> tuple[int, ...]:
    """Return the shape of a patch for the tower's first layer: flat, or an image for a 2-D convolution."""
    layers = [part for part in tower.modules() if isinstance(part, (nn.Linear, *_CONVOLUTIONS))]
    # Qwen 3 Omni's tower has layers that merge patches before the one that takes them.
    first = next((part for part in layers if isinstance(part, nn.Conv3d)), next(iter(layers), None))
    match first:
        case nn.Conv3d():
            return (first.in_channels * first.kernel_size[0] * patch * patch,)
        case nn.Conv2d():
            shape = (first.in_channels, patch, patch)
            is_flat = getattr(getattr(tower, "config", None), "model_type", None) in _FLAT
            return (math.prod(shape),) if is_flat else shape
        case nn.Linear():
            return (first.in_features,)
    raise Underivable("the vision tower has no layer that takes patches")


def _patches(request: InputRequest, count: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the patches of all images, one after the other; a retriever (ColQwen2) takes them by image."""
    if hasattr(request.config, "vlm_config"):
        return request.floats(request.batch, count, *shape)
    return request.floats(request.batch * count, *shape)


def _merge_sizes(request: InputRequest, merge: int) -> dict[str, torch.Tensor]:
    if _MERGE_SIZES not in request.parameters:
        return {}
    return {_MERGE_SIZES: request.ids(request.batch, value=merge)}


_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)
