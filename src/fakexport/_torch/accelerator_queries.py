"""`torch.accelerator`'s questions, answered by the first accelerator type of a topology.

Seen on torch 2.11 to 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from .device_queries import Backend
from .virtual_streams import VirtualStream

# What torch's own default names: `c10/core/DeviceCapability.h`, all bits set.
_DTYPES = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}


class AcceleratorQueries:
    """Method names are the names of `torch.accelerator` that they replace."""

    def __init__(self, backend: Backend | None) -> None:
        self._backend = backend

    def _chosen(self) -> Backend:
        if self._backend is None:
            raise RuntimeError("Cannot access accelerator device when none is available.")
        return self._backend

    def is_available(self) -> bool:
        return self._backend is not None

    def device_count(self) -> int:
        return 0 if self._backend is None else self._backend.device_count()

    def current_accelerator(self, check_available: bool = False) -> torch.device | None:
        return None if self._backend is None else torch.device(self._backend.device_type)

    def current_device_index(self) -> int:
        return self._chosen().current_device()

    current_device_idx = current_device_index

    def set_device_index(self, device: Any, /) -> None:
        self._chosen().set_device(device)

    set_device_idx = set_device_index

    def get_device_capability(self, device: Any = None, /) -> dict[str, Any]:
        self._chosen()._index(device)
        return {"supported_dtypes": set(_DTYPES)}

    def current_stream(self, device: Any = None, /) -> VirtualStream:
        return self._chosen().current_stream(device)

    def set_stream(self, stream: VirtualStream) -> None:
        self._chosen().set_stream(stream)

    def synchronize(self, device: Any = None, /) -> None:
        self._chosen()._index(device)

    @contextmanager
    def device_index(self, device: int | None, /) -> Iterator[None]:
        if device is None:
            yield
            return
        previous = self._chosen()._exchange_device(device)
        try:
            yield
        finally:
            self._chosen()._exchange_device(previous)

    def get_memory_info(self, device_index: Any = None, /) -> tuple[int, int]:
        return self._chosen().mem_get_info(device_index)

    def memory_allocated(self, device_index: Any = None, /) -> int:
        return self._chosen().memory_allocated(device_index)

    max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated

    def memory_stats(self, device_index: Any = None, /) -> Mapping[str, Any]:
        return self._chosen().memory_stats(device_index)

    def empty_cache(self) -> None:
        """Return without effect: nothing is cached."""

    empty_host_cache = empty_cache

    def reset_peak_memory_stats(self, device_index: Any = None, /) -> None:
        self._chosen()._index(device_index)

    reset_accumulated_memory_stats = reset_peak_memory_stats
