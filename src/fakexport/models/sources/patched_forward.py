"""Temporarily replace the `forward` of a module, or another method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def patched_forward(
    module: nn.Module, forward: Callable[..., Any], method: str = "forward"
) -> Iterator[None]:
    """Enter a context in which a module has a different `forward`, or a different method of another name.

    On exit, the original is restored where it was, on the class or on the instance. `patch_attribute` of
    transformers would leave it on the instance, which then differs from a module that was never patched.
    """
    own = vars(module).get(method)
    setattr(module, method, forward)
    try:
        yield
    finally:
        if own is not None:
            setattr(module, method, own)
        else:
            delattr(module, method)
