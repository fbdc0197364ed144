"""Writes to memory past every operator: `tensor.untyped_storage()[0] = 1`. Seen on torch 2.13.

The memory of a fake tensor has no data, and torch leaves such a write out without a word. A trace refuses
storages altogether.

Source: `torch/csrc/StorageMethods.cpp`, `torch/storage.py:UntypedStorage`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .patching import Patches, in_force

_WRITES = (
    *((torch.UntypedStorage, name) for name in ("__setitem__", "byteswap", "copy_", "fill_")),
    *((torch.TypedStorage, name) for name in ("__setitem__", "fill_")),
)


def storage_writes(written: Callable[[torch.UntypedStorage], bool]) -> Patches:
    """Return a context in which writes to storages without data are noted.

    Args:
        written: Is told of a storage that is to be written. If it returns False, torch goes on.
    """

    def replacement(stock: Any) -> Callable[..., Any]:
        def write(storage: Any, *args: Any, **kwargs: Any) -> Any:
            memory = storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage
            if memory.device.type == "meta" and written(memory):
                return storage
            return stock(storage, *args, **kwargs)

        return write

    return Patches({place: replacement(in_force(*place)) for place in _WRITES})
