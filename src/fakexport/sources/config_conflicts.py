"""Configs that contradict themselves: some defaults of transformers are of no model that sees or hears."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

from fakexport.sources.input_request import InputRequest

__all__ = ["conflict_of"]


def conflict_of(request: InputRequest, role: str) -> str | None:
    """Return why no image or sound fits the config, in one clause; None where nothing is known against it.

    Args:
        request: Request of the model.
        role: `vision` or `audio`.
    """
    clause = next(_CONFLICTS[role](request), None)
    return None if clause is None else f"the config contradicts itself, and eager mode fails too: {clause}"


def _of_images(request: InputRequest) -> Iterator[str]:
    vision = request.setting("vision_config")
    size, patch = getattr(vision, "image_size", None), getattr(vision, "patch_size", None)
    if not isinstance(size, int) or not isinstance(patch, int):
        return
    side = size // patch
    patches = f"an image is {side} x {side} patches"
    factor = request.setting("pixel_shuffle_factor")
    if isinstance(factor, int) and side % factor:
        yield f"{patches}, which pixel_shuffle_factor={factor} does not divide"
    tokens = request.setting("mm_tokens_per_image")
    if isinstance(tokens, int) and math.isqrt(tokens) > side:
        yield f"{patches}, too few for mm_tokens_per_image={tokens}"
    ratio: Any = getattr(vision, "pixel_shuffle_ratio", None)
    if ratio is not None and (merged := round(vision.hidden_size / ratio**2)) != vision.intermediate_size:
        yield (
            f"pixel_shuffle_ratio={ratio} makes {merged} channels of hidden_size={vision.hidden_size}, and "
            f"intermediate_size is {vision.intermediate_size}"
        )


def _of_sounds(request: InputRequest) -> Iterator[str]:
    encoder, projector = (
        getattr(request.config, name, None) for name in ("encoder_config", "projector_config")
    )
    given, taken = getattr(encoder, "hidden_dim", None), getattr(projector, "encoder_hidden_size", None)
    if given is not None and taken is not None and given != taken:
        yield f"the projector takes encoder_hidden_size={taken} of an encoder with hidden_dim={given}"


_CONFLICTS: MappingProxyType[str, Callable[[InputRequest], Iterator[str]]] = MappingProxyType(
    {"vision": _of_images, "audio": _of_sounds}
)
