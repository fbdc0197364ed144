"""Contexts that run operators on real CPU tensors, on meta tensors, or on fake tensors as an export does.

Seen on torch 2.11 to 2.13. Source: `torch/export/_trace.py` and
`torch/fx/experimental/proxy_tensor.py:_MakefxTracer`, which enable the Python kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def meta_execution() -> Iterator[None]:
    """Enter a context without dispatch modes in which new tensors are on the meta device."""
    with _disable_current_modes(), torch.device("meta"):
        yield


@contextmanager
def real_execution() -> Iterator[None]:
    """Enter a context in which operators compute real data: without modes, autograd or autocast.

    It also works while a mode dispatches an operator, when that mode is already disabled.
    """
    with (
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        yield


def python_kernels() -> AbstractContextManager[None]:
    """Return a context in which operators on fake tensors use torch's Python kernels, as during export.

    Fake mode alone does not use these kernels. Some of them support data-dependent sizes that the C++ kernels
    do not support, for example the Python kernel of `aten.constant_pad_nd`.
    """
    guard: AbstractContextManager[None] = enable_python_dispatcher()
    return guard
