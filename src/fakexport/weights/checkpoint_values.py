"""A checkpoint with values that a caller gives beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch

from fakexport._torch.wrapper_subclasses import flat_tensors
from fakexport.weights.checkpoint import Checkpoint
from fakexport.weights.torch_file import entries_of

__all__ = ["with_values"]


def with_values(checkpoint: Checkpoint, values: Mapping[str, torch.Tensor]) -> Checkpoint:
    """The checkpoint with these entries besides, or in place, of its own.

    Args:
        checkpoint: Not changed.
        values: By name; of a wrapper subclass the tensors inside of it.
    """
    own = flat_tensors(values)

    def read(name: str) -> torch.Tensor:
        return own[name] if name in own else checkpoint.read(name)

    entries = MappingProxyType({**checkpoint.entries, **entries_of(own, None)})
    return replace(checkpoint, entries=entries, read=read)
