"""Evaluate expressions that create example inputs from a config, such as `floats(B, T, hidden_size)`.

`transformers_inputs.toml` and `diffusers_inputs.toml` contain the expressions. A name in an expression is
either defined by this module or the table, or it is a setting of the config. If no part of the config has the
setting, its value is None.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any

import torch

from fakexport.models.sources.transformers.input_request import InputRequest

Builder = Callable[[InputRequest], Any]


@cache
def table(package: str, file: str) -> Mapping[str, Mapping[str, str]]:
    """Return the expressions in a TOML file of a package."""
    return tomllib.loads((resources.files(package) / file).read_text(encoding="utf-8"))


def expression(text: str, names: Mapping[str, Builder]) -> Builder:
    """Return the function that evaluates an expression.

    The text is executed as code, so it must come from a file of this package. `names` has a function that
    returns the value of each name that `NAMES` does not define.
    """
    code = compile(f"({text})", f"<inputs: {text}>", "eval")
    # torch functions in the expression import modules with the `__import__` of these names.
    known = {"__builtins__": {"__import__": __import__}}
    return lambda request: eval(code, known, _Names(request, {**NAMES, **names}))


class _Names(Mapping[str, Any]):
    def __init__(self, request: InputRequest, names: Mapping[str, Builder]) -> None:
        self._request, self._known = request, names

    def __getitem__(self, name: str) -> Any:
        known = self._known.get(name)
        return self._request.setting(name) if known is None else known(self._request)

    def __iter__(self) -> Any:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def sized(fill: Callable[..., Any]) -> Builder:
    """Wrap a function that takes sizes, so that it returns None if the config lacks one of the sizes."""
    return lambda request: (
        lambda *dims, **options: None if None in dims else fill(request, *map(int, dims), **options)
    )


def constant(value: Any) -> Builder:
    """Return a builder that returns the same value for every request."""
    return lambda request: value


def _mask(request: InputRequest, *dims: int) -> torch.Tensor:
    return request.ids(*dims, value=1).bool()


def count(request: InputRequest, number: int) -> torch.Tensor:
    """Return the int64 tensor 0, 1, ..., number - 1."""
    return torch.arange(number, device=request.device)


def _cells(request: InputRequest, *dims: int) -> torch.Tensor:
    """Return the int64 coordinates of all grid cells, one row per cell. The last axis varies fastest."""
    axes = torch.meshgrid(*(count(request, size) for size in dims), indexing="ij")
    return torch.stack(axes, dim=-1).reshape(-1, len(dims))


def _batched(request: InputRequest) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda one: one.expand(request.batch, *one.shape).clone()


NAMES: Mapping[str, Builder] = {
    "B": lambda request: request.batch,
    "T": lambda request: request.sequence,
    "module": lambda request: request.module,
    "floats": sized(InputRequest.floats),
    "ids": sized(InputRequest.ids),
    "mask": sized(_mask),
    "count": sized(count),
    "cells": sized(_cells),
    "batched": _batched,
    **{each.__name__: constant(each) for each in (torch.cat, math.prod, int, len, max, min)},
}
