"""A run of a model on fakes must leave nothing in the model: what it keeps would be a constant of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["restored_attributes"]


@contextmanager
def restored_attributes(module: nn.Module) -> Iterator[None]:
    """Restore the attributes and buffers of a module and its parts after the block.

    Mimi keeps the codebook that it computes of its weights, for the next call: a program would have the
    codebook of the untrained weights.

    Args:
        module: The model. What its attributes refer to is not copied.
    """
    before = [(part, dict(vars(part)), dict(part._buffers)) for part in module.modules()]
    try:
        yield
    finally:
        for part, attributes, buffers in before:
            for name in vars(part).keys() - attributes.keys():
                del vars(part)[name]
            vars(part).update(attributes)
            part._buffers.clear()
            part._buffers.update(buffers)
