"""Change the inputs that a processor returns so that a trace can use them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from fakexport.models.sources.media_inputs.audio_masks import fixed_masks
from fakexport.models.sources.media_inputs.encoder_runs import run_encoders, runs_without_values
from fakexport.models.sources.media_inputs.fixed_numbers import as_numbers
from fakexport.models.sources.media_inputs.image_grids import (
    GRID,
    TOWER_GRID,
    computed_of,
    grid_tower,
    is_grid_tower,
    positions_of,
)
from fakexport.models.sources.transformers.exporter_patches import computed_note
from fakexport.models.sources.transformers.input_request import InputRequest, Underivable

_SIZES = "image_sizes"
_TOKEN_TYPES = "mm_token_type_ids"
_TEXT = ("input_ids", "attention_mask", "token_type_ids", _TOKEN_TYPES, "position_ids")


def traceable_inputs(
    request: InputRequest, inputs: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str], bool]:
    """Convert inputs so that a trace with them reaches the language model.

    A program cannot compute tensors that depend on the values of an input, such as positions of tokens and
    patches, lengths and windows. These tensors therefore also become inputs. They are computed as in
    `transformers.exporters`. If the model also reads values of an input in Python, the input is replaced with
    numbers, which are constant in the program.

    Returns:
        The inputs; notes for the report, or the model's error; and whether the model reaches its language
        model with these inputs.
    """
    name, prefix = (TOWER_GRID, "") if is_grid_tower(request) else (GRID, "image_")
    grid, tower, computed = inputs.get(name), grid_tower(request.module), {}
    # If the grid consists of numbers, an earlier call already converted it, for example for an image before
    # audio.
    if tower is not None and isinstance(grid, torch.Tensor):
        of_tower = computed_of(tower, {TOWER_GRID: grid})
        computed = {f"{prefix}{each}": value for each, value in of_tower.items()}
    positions = positions_of(request.module, inputs)
    found = {**inputs, **{n: request.values(value) for n, value in {**computed, **positions}.items()}}
    if positions and computed:
        found.pop(_TOKEN_TYPES, None)  # Token types are only used to compute positions.
    run = run_encoders(request, found)
    if type(run.error) in (ValueError, RuntimeError):
        raise Underivable(f"eager mode fails with this input too: {run.reason}")
    if not run.is_complete:
        return found, [run.reason], False
    found = _traced_or_numbers(request, found, computed)
    prepared = [each for each in (*positions, *computed) if isinstance(found.get(each), torch.Tensor)]
    return found, [computed_note(prepared, name)] if prepared and grid is not None else [], True


def _traced_or_numbers(
    request: InputRequest, inputs: dict[str, Any], computed: Collection[str]
) -> dict[str, Any]:
    """Return the inputs. If a trace needs the values of tensors, these are replaced with numbers.

    Inputs in `computed`, which are computed from others, are omitted if the others become numbers.
    """
    found = inputs
    for found in _changed(request, inputs, computed):
        if runs_without_values(request, found):
            break
    return found


def _changed(
    request: InputRequest, inputs: dict[str, Any], computed: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Yield the unchanged inputs, then inputs in which more and more tensors are replaced with numbers."""
    yield inputs
    if isinstance(inputs.get(_SIZES), torch.Tensor):
        inputs = {**inputs, _SIZES: [tuple(row) for row in inputs[_SIZES].tolist()]}
        yield inputs
    masked = {**inputs, **fixed_masks(request, inputs)}
    yield masked
    small = [name for name, value in masked.items() if _is_geometry(name, value)]
    small = [name for name in small if name not in computed or name.endswith(_LENGTHS)]
    fixed = {name: as_numbers(request.module, name, masked[name], masked[name].tolist()) for name in small}
    kept = {name: value for name, value in masked.items() if name not in computed or name in fixed}
    yield kept | fixed


_MOST_NUMBERS = 64
# These inputs are computed from the grid, but are needed in addition to it, because their length depends on
# the values of the grid.
_LENGTHS = "cu_seqlens"


def _is_geometry(name: str, value: Any) -> bool:
    is_number = isinstance(value, torch.Tensor) and not value.is_floating_point()
    return is_number and name not in _TEXT and value.numel() <= _MOST_NUMBERS
