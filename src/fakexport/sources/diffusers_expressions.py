"""Evaluate `diffusers_inputs.toml`: inputs of single diffusers classes, in terms of config settings."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import torch

from fakexport.sources import diffusers_sizes as sizes
from fakexport.sources.input_request import InputRequest

Builder = Callable[[InputRequest], Any]


def special_builder(model_class: str, name: str) -> Builder | None:
    """Return what builds an input of a class, if the table has it."""
    text = _expressions().get(model_class, {}).get(name) or _expressions()["ANY"].get(name)
    return never if text == "never" else None if text is None else _builder(text)


def never(request: InputRequest) -> None:
    """Leave out an input that the pipelines of a class never pass, whose weights they do not use either."""


@cache
def _expressions() -> Mapping[str, Mapping[str, str]]:
    file = resources.files(__package__) / "diffusers_inputs.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


@cache
def _builder(text: str) -> Builder:
    code = compile(text, f"<diffusers_inputs.toml: {text}>", "eval")
    # The text is a part of this package, and trusted like its code. Native functions of torch that it calls
    # import modules by the `__import__` of these names.
    names = {"__builtins__": {"__import__": __import__}}
    return lambda request: eval(code, names, _Names(request))


class _Names(Mapping[str, Any]):
    """The names of an expression; see the head of `diffusers_inputs.toml`."""

    def __init__(self, request: InputRequest) -> None:
        self._request = request

    def __getitem__(self, name: str) -> Any:
        known = _NAMES.get(name)
        return self._request.setting(name) if known is None else known(self._request)

    def __iter__(self) -> Any:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


def _sized(fill: Callable[..., Any]) -> Builder:
    """Return a function of sizes, which returns None if the config does not name one of them."""
    return lambda request: (
        lambda *dims, **options: None if None in dims else fill(request, *map(int, dims), **options)
    )


def _zeros(request: InputRequest, *dims: int) -> torch.Tensor:
    return torch.zeros(dims, device=request.device)


def _mask(request: InputRequest, *dims: int) -> torch.Tensor:
    return request.ids(*dims, value=1).bool()


def _count(request: InputRequest, count: int) -> torch.Tensor:
    return torch.arange(count, device=request.device)


def _cells(request: InputRequest, *dims: int) -> torch.Tensor:
    """Return the place of each cell, an int64 for each axis, the last axis running fastest."""
    axes = torch.meshgrid(*(_count(request, size) for size in dims), indexing="ij")
    return torch.stack(axes, dim=-1).reshape(-1, len(dims))


def _hint(request: InputRequest) -> Callable[[int, Sequence[int]], torch.Tensor]:
    """Return what makes the image that a ControlNet takes: each of its blocks but the first halves it."""
    return lambda channels, blocks: request.floats(
        request.batch, int(channels), *(side * 2 ** (len(blocks) - 1) for side in sizes.sides(request))
    )


def _batched(request: InputRequest) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda one: one.expand(request.batch, *one.shape).clone()


def _pixels(request: InputRequest) -> Callable[[int], list[int]]:
    """Return height and width of a video, given its pixels along a side for each latent."""
    return lambda scale: [side * scale for side in sizes.sides(request, sizes.VIDEO_SIDE)]


_FIXED = {
    "LENGTH": sizes.SAMPLES,
    "FRAMES": sizes.FRAMES,
    "SIDE": sizes.SIDE,
    "VIDEO": sizes.VIDEO_SIDE,
    "PACKED": sizes.PACKED_SIDE,
    "ROW": sizes.PACKED_SIDE**2,
    "cat": torch.cat,
    "prod": math.prod,
    "len": len,
    "max": max,
}
_NAMES: Mapping[str, Builder] = {
    **{name: lambda _, value=value: value for name, value in _FIXED.items()},  # type: ignore[misc]
    "B": lambda request: request.batch,
    "T": lambda request: request.sequence,
    "DEVICE": lambda request: torch.device(request.device),
    "DTYPE": lambda request: request.dtype,
    "LATENTS": sizes.latent_shape,
    "SIDES": sizes.sides,
    "PATCHES": sizes.patches,
    "TEXT_WIDTH": sizes.text_width,
    "AXES": lambda request: len(
        request.setting("axes_dims_rope", "rope_axes_dim", "axes_dims", default=(0, 0, 0))
    ),
    "module": lambda request: request.module,
    "floats": _sized(InputRequest.floats),
    "ids": _sized(InputRequest.ids),
    "mask": _sized(_mask),
    "zeros": _sized(_zeros),
    "count": _sized(_count),
    "cells": _sized(_cells),
    "eye": _sized(lambda request, size: torch.eye(size, device=request.device)),
    "several": _sized(lambda request, count, *dims: [request.floats(*dims) for _ in range(count)]),
    "hint": _hint,
    "batched": _batched,
    "pixels": _pixels,
}
