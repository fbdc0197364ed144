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
    """Enter a context in which the `forward` of a module, or another method, is replaced.

    On exit, the original is restored where it was defined: on the class or on the instance. transformers'
    `patch_attribute` would leave the method on the instance, which would then differ from a module that was
    never patched.
    """
    own = vars(module).get(method)
    setattr(module, method, forward)
    try:
        yield
    finally:
        if own is not None:
            setattr(module, method, own)
        else:
            vars(module).pop(method, None)
