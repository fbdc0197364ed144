"""Running operators for real on the CPU, whatever modes are active around. Seen on torch 2.11 to 2.13."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def meta_execution() -> Iterator[None]:
    """Enter a context in which new tensors are on the meta device, and no dispatch mode acts."""
    with _disable_current_modes(), torch.device("meta"):
        yield


@contextmanager
def real_execution() -> Iterator[None]:
    """Enter a context in which operators compute: no dispatch or function mode, autograd or autocast acts.

    Used inside of a mode's own dispatch as well, where that mode is already off.
    """
    with (
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        yield
