"""Fake kernels of fused optimizers, which torch has for `Adam` and not for `SGD` and `Adagrad`.

They write into the tensors that they are given, and return nothing. Seen on torch 2.11 to 2.13.

Source: `aten/src/ATen/native/native_functions.yaml:_fused_sgd_`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_FUSED = ("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr")


@contextmanager
def fused_optimizers() -> Iterator[None]:
    """Enter a context in which every fused optimizer runs on fakes."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name in _FUSED:
            if _lacks_meta_kernel(f"aten::{name}"):
                library.impl(name, _nothing, "Meta")
        yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do what an optimizer does to shapes, dtypes and devices."""


def _lacks_meta_kernel(name: str) -> bool:
    try:
        return not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")
    except RuntimeError:  # No such operator in this release.
        return False
