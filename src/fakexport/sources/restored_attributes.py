"""A run of a model on fakes must leave nothing in the model: what it keeps would be a constant of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def restored_attributes(module: nn.Module) -> Iterator[None]:
    """Restore buffers and attributes of a module and its parts after the block, where these became tensors.

    Mimi keeps the codebook that it computes of its weights, for the next call: a program would have the
    codebook of the untrained weights.

    Other attributes stay as they are: transformers replaces methods in the first run, and notes that it did.

    Args:
        module: The model. What its attributes refer to is not copied.
    """
    before = [(part, dict(vars(part)), dict(part._buffers)) for part in module.modules()]
    try:
        yield
    finally:
        for part, attributes, buffers in before:
            own = vars(part)
            for name in [name for name, value in own.items() if isinstance(value, torch.Tensor)]:
                if name not in attributes:
                    del own[name]
                elif own[name] is not attributes[name]:
                    own[name] = attributes[name]
            part._buffers.clear()
            part._buffers.update(buffers)
