"""Weights that `from_pretrained` keeps in float32, whatever dtype it is asked for."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn


def keep_in_float32(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert what a model names in `_keep_in_fp32_modules` and `_keep_in_fp32_modules_strict`.

    `from_pretrained` reads these weights in float32, such as the convolutions of Inkling. A model that is
    constructed from its config has them in the dtype of all others, and its code then gets dtypes that it
    never gets from a checkpoint. Constants that no checkpoint has stay as they are.

    Args:
        module: A model of transformers, as its constructor returns it; changed in place.
        dtype: The dtype that was asked for.
    Source: transformers 5.17 to 5.23, `core_model_loading.py:convert_and_load_state_dict_in_model`.
    """
    owner: Any = module
    plan = owner._get_dtype_plan(dtype) if hasattr(owner, "_get_dtype_plan") else {}
    if not plan:
        return
    kept = re.compile("|".join(f"(?:{name.replace('*', '.*')})" for name in plan))
    for name, held in module.state_dict(keep_vars=True).items():
        if isinstance(held, torch.Tensor) and held.is_floating_point() and kept.search(name):
            held.data = held.data.to(torch.float32)
