"""Sources from torchvision: `torchvision:NAME`.

Source: `torchvision/ops/boxes.py`, `torchvision/ops/poolers.py`, `torchvision/models/detection/_utils.py` of
torchvision 0.29.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fakexport._torch.patching import Patches
from fakexport.models.sources.source import ExampleInputs, Source
from fakexport.models.sources.source_error import SourceError, did_you_mean, import_library, pip_command

BATCH = 2
_FRAMES = 16
_SIDE = 224
_OPTICAL_FLOW = (128, 128)


def torchvision_source(spec: str, name: str) -> Source:
    """Return the source of a torchvision model with untrained weights."""
    try:
        models = import_library("torchvision", spec).models
    except SourceError as error:
        if "operator torchvision::" not in str(error):
            raise
        raise SourceError(
            f"{spec}: the installed torchvision was made for a different build of torch: run "
            f"`{pip_command('torchvision')} --force-reinstall`"
        ) from error
    if name not in models.list_models():
        raise SourceError(f"torchvision has no model {name!r}{did_you_mean(name, models.list_models())}")
    builder = models.get_model_builder(name)
    kind = builder.__module__.removeprefix("torchvision.models.").partition(".")[0]
    options = [key for key in inspect.signature(builder).parameters if key.startswith("weights")]

    def construct() -> nn.Module:
        model: nn.Module = builder(**dict.fromkeys(options))
        return model.eval()

    if kind == "detection":
        return Source(spec, "torchvision", construct, _list_of_images, tracing=_detection_patches)
    shapes = _shapes(kind, _side(models.get_model_weights(builder)))
    return Source(spec, "torchvision", construct, partial(_zeros, shapes))


def _side(weights: Any) -> int:
    """Return the height and width of the images that the published weights are for."""
    options = getattr(weights.DEFAULT.transforms, "keywords", {})
    size = options.get("crop_size", options.get("resize_size", _SIDE))
    return int(size[-1] if isinstance(size, (tuple, list)) else size)


def _shapes(kind: str, side: int) -> tuple[tuple[int, ...], ...]:
    if kind == "video":
        return ((BATCH, 3, _FRAMES, side, side),)
    if kind == "optical_flow":
        return ((BATCH, 3, *_OPTICAL_FLOW), (BATCH, 3, *_OPTICAL_FLOW))
    return ((BATCH, 3, side, side),)


def _zeros(
    shapes: tuple[tuple[int, ...], ...], module: nn.Module, device: str, dtype: torch.dtype | None
) -> ExampleInputs:
    dtype = dtype or _dtype(module)
    return ExampleInputs(tuple(torch.zeros(shape, device=device, dtype=dtype) for shape in shapes))


def _list_of_images(module: nn.Module, device: str, dtype: torch.dtype | None) -> ExampleInputs:
    """Return one image of the size to which the model resizes images."""
    transform: Any = module.transform
    height, width = transform.fixed_size or (transform.min_size[-1], transform.min_size[-1])
    image = torch.zeros(3, height, width, device=device, dtype=dtype or _dtype(module))
    return ExampleInputs(([image],), assumptions=(f"one image of {height} x {width} pixels",))


def _dtype(module: nn.Module) -> torch.dtype:
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())


def _detection_patches(module: nn.Module, inputs: ExampleInputs) -> AbstractContextManager[None]:
    """Return a context in which detectors take any number of boxes, also none.

    torchvision branches on the number of boxes, reads it as an integer, and its fake kernel of NMS promises
    at least two boxes. The replacements compute the same without a branch. They can go when torchvision
    exports its detectors (pytorch/vision#9462).
    """
    from torchvision.models.detection._utils import BoxCoder
    from torchvision.ops import boxes, poolers

    torch.library.register_fake("torchvision::nms", _fake_nms)
    return Patches(
        {
            (boxes, "batched_nms"): _batched_nms,
            (BoxCoder, "decode"): _decode,
            (poolers, "len"): lambda value: value.shape[0] if isinstance(value, Tensor) else len(value),
        }
    )


def _fake_nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    return dets.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.long)


def _batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """Move the boxes of each class to where no box of another class is, and apply NMS to all together."""
    largest = torch.cat([boxes.flatten(), boxes.new_zeros(1)]).max()
    offsets = idxs.to(boxes) * (largest + 1)
    kept: Tensor = torch.ops.torchvision.nms(boxes + offsets[:, None], scores, iou_threshold)
    return kept


def _decode(coder: Any, rel_codes: Tensor, boxes: list[Tensor]) -> Tensor:
    """Return the boxes of each class, of shape (boxes, classes, 4)."""
    decoded: Tensor = coder.decode_single(rel_codes, torch.cat(boxes))
    return decoded.reshape(rel_codes.shape[0], rel_codes.shape[1] // 4, 4)
