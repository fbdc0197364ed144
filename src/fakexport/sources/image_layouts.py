"""In which layouts models take images: alone, in tiles, as packed patches, with sizes and masks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from fakexport.sources.fixed_numbers import as_numbers
from fakexport.sources.image_inputs import height_and_width, image
from fakexport.sources.input_request import InputRequest, Underivable

PIXELS = "pixel_values"


def image_layouts(request: InputRequest) -> Iterator[dict[str, Any]]:
    """Yield what one image per row of text may look like to the model, the most telling layout first.

    Names of its parameters tell which layouts come into question; only the model can tell which it is.
    """
    parameters = request.parameters
    if "spatial_shapes" in parameters:
        yield _packed_patches(request)
    elif "target_sizes" in parameters:
        yield _patches_in_one_row(request)
    elif "image_position_ids" in parameters:
        yield placed_patches(request)
    elif "codebook_pixel_values" in parameters:
        yield _with_codebook(request)
    elif "image_grid_hw" in parameters:
        yield _patches_of_all_images(request)
    elif "image_token_pooling" in parameters:
        yield _pooled_views(request)
    elif "aspect_ratio_ids" in parameters:
        yield _tiles_of_an_aspect_ratio(request)
    elif getattr(request.config, "image_grid_pinpoints", None):
        yield _tiles(request)
    else:
        yield from _alone(request)


def _alone(request: InputRequest) -> Iterator[dict[str, Any]]:
    """Yield whole images: one for each row, or rows of one image each."""
    pixels = image(request)
    of_a_row = pixels.unsqueeze(1)
    more = _other_resolution(request)
    if "pixel_attention_mask" in request.parameters:
        yield {PIXELS: of_a_row, **_mask(request, "pixel_attention_mask", of_a_row)}
        yield {PIXELS: of_a_row, "pixel_attention_mask": _of_ones(request, request.batch, 1)}
        return
    masked = {PIXELS: pixels, **more, **_mask(request, "pixel_mask", pixels)}
    yield masked | _sizes(request)
    if "image_sizes" in request.parameters:
        yield masked | {"image_sizes": [height_and_width(request)] * request.batch}
    if (patch := request.setting("patch_size")) is not None and not hasattr(request.config, "vision_config"):
        flat = request.floats(request.batch, request.sequence, pixels.shape[1] * patch * patch)
        yield {PIXELS: flat}
        yield {PIXELS: flat.flatten(0, 1)}
    yield {PIXELS: of_a_row, **more}


def _mask(request: InputRequest, name: str, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a mask of all pixels, without the dimension of the channels."""
    if name not in request.parameters:
        return {}
    return {name: _of_ones(request, *pixels.shape[:-3], *pixels.shape[-2:])}


def _of_ones(request: InputRequest, *shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.bool, device=request.device)


def _sizes(request: InputRequest) -> dict[str, Any]:
    """Return heights and widths as numbers: models cut images by them, which a program cannot vary."""
    required = request.encoder_parameters("get_image_features") or {}
    if "image_sizes" not in request.parameters or not required.get("image_sizes"):
        return {}
    return {"image_sizes": [height_and_width(request)] * request.batch}


def _with_codebook(request: InputRequest) -> dict[str, torch.Tensor]:
    """Return an image with all patches masked, and that of which a codebook makes their codes (FLAVA)."""
    _, rows, columns = _patch_grid(request, 1)
    codebook = request.config.image_codebook_config
    smaller = 2 ** (codebook.num_groups - 1)  # Each group but the last halves the image.
    return {
        PIXELS: image(request),
        "codebook_pixel_values": request.floats(
            request.batch, codebook.input_channels, rows * smaller, columns * smaller
        ),
        "bool_masked_pos": _of_ones(request, request.batch, rows, columns),
    }


def _other_resolution(request: InputRequest) -> dict[str, torch.Tensor]:
    if "high_res_pixel_values" not in request.parameters:
        return {}
    size = request.setting("high_res_vision_config").image_size
    return {"high_res_pixel_values": request.floats(request.batch, 3, size, size)}


def _tiles(request: InputRequest) -> dict[str, Any]:
    """Return an image of the size of a tile: in the tiles of the grid that fits best, and as a whole."""
    counting = getattr(sys.modules[type(request.module).__module__], "image_size_to_num_patches", None)
    if counting is None:
        raise Underivable("the model does not say into how many tiles it cuts an image")
    side = request.config.vision_config.image_size
    size = (side, side) if isinstance(side, int) else (side[0], side[-1])
    tiles = counting(size, request.config.image_grid_pinpoints, size[0])
    pixels = image(request)
    return {
        PIXELS: request.floats(request.batch, tiles, *pixels.shape[1:]),
        "image_sizes": [size] * request.batch,
    }


def _tiles_of_an_aspect_ratio(request: InputRequest) -> dict[str, torch.Tensor]:
    """Return an image that fills every tile (Mllama)."""
    tiles = request.setting("max_num_tiles")
    ratios = request.setting("supported_aspect_ratios")
    full = next(index for index, (high, wide) in enumerate(ratios) if high * wide == tiles)
    pixels = image(request)
    return {
        PIXELS: request.floats(request.batch, 1, tiles, *pixels.shape[1:]),
        "aspect_ratio_ids": request.ids(request.batch, 1, value=full + 1),  # 0 is for no image
        "aspect_ratio_mask": request.ids(request.batch, 1, tiles, value=1),
    }


def _patch_grid(request: InputRequest, multiple: int) -> tuple[int, int, int]:
    """Return the side of a patch, and rows and columns of patches, which are multiples of a number."""
    patch = request.setting("encoder_patch_size", "patch_size")
    if not isinstance(patch, int):
        raise Underivable("the config has no patch_size")
    rows, columns = (max(size // (patch * multiple), 1) * multiple for size in height_and_width(request))
    return patch, rows, columns


def _packed_patches(request: InputRequest) -> dict[str, torch.Tensor]:
    """Return flat patches with the shape of their grid (SigLIP 2)."""
    patch, rows, columns = _patch_grid(request, request.setting("downsample_factor", default=1))
    channels = request.setting("num_channels", default=3)
    shape = request.values(torch.tensor([[rows, columns]])).expand(request.batch, 2).clone()
    return {
        PIXELS: request.floats(request.batch, rows * columns, channels * patch * patch),
        "spatial_shapes": shape,
        "pixel_attention_mask": request.ids(request.batch, rows * columns, value=1),
    }


def _patches_in_one_row(request: InputRequest) -> dict[str, Any]:
    """Return the patches of all images next to each other (MiniCPM-V)."""
    patch, rows, columns = _patch_grid(request, 4)
    channels = request.setting("num_channels", default=3)
    return {
        PIXELS: request.floats(1, channels, patch, request.batch * rows * columns * patch),
        **_fixed(request, "target_sizes", [rows, columns]),
    }


def _patches_of_all_images(request: InputRequest) -> dict[str, Any]:
    """Return flat patches of all images, one after the other, with the rows and columns of each (RADIO)."""
    patch, rows, columns = _patch_grid(request, round(1 / request.setting("downsample_ratio", default=1)))
    channels = request.setting("num_channels", default=3)
    return {
        PIXELS: request.floats(request.batch * rows * columns, channels * patch * patch),
        **_fixed(request, "image_grid_hw", [rows, columns]),
    }


def _pooled_views(request: InputRequest) -> dict[str, Any]:
    """Return each image as a whole and as one crop, and which patches each token is pooled of (Molmo 2).

    An image of the size of a crop has one. The processor pools squares of 2 x 2 patches; -1 is for none.
    """
    patch, rows, columns = _patch_grid(request, 1)
    channels = request.setting("num_channels", default=3)
    places = torch.nn.functional.pad(
        torch.arange(rows * columns).reshape(rows, columns), (0, columns % 2, 0, rows % 2), value=-1
    )
    grid = [size // 2 for size in places.shape]
    squares = places.reshape(grid[0], 2, grid[1], 2).transpose(1, 2).reshape(-1, 4)
    firsts = torch.arange(2 * request.batch) * rows * columns
    pooled = torch.where(squares < 0, -1, squares + firsts[:, None, None]).flatten(0, 1)
    return {
        PIXELS: request.floats(2 * request.batch, rows * columns, channels * patch * patch),
        "image_token_pooling": request.values(pooled),
        **_fixed(request, "image_grids", [*grid, *grid]),
    }


def _fixed(request: InputRequest, name: str, row: list[int]) -> dict[str, Any]:
    """Return an input that has the same row for each image, as numbers."""
    tensor = request.values(torch.tensor([row])).repeat(request.batch, 1)
    return {name: as_numbers(request.module, name, tensor, [row] * request.batch)}


def placed_patches(request: InputRequest) -> dict[str, torch.Tensor]:
    """Return flat patches with the column and the row of each (Gemma 4)."""
    patch, rows, columns = _patch_grid(request, request.setting("pooling_kernel_size", default=1))
    places = [[column, row] for row in range(rows) for column in range(columns)]
    return {
        PIXELS: request.floats(request.batch, rows * columns, 3 * patch * patch),
        "image_position_ids": request.values(torch.tensor([places])).repeat(request.batch, 1, 1),
    }
