"""Streams and events of virtual devices. Nothing is queued, so all work is complete immediately."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from .virtual_guard import DEVICE_TYPE_INDEX


class VirtualStream:
    """Replacement for `torch.cuda.Stream` on a virtual device."""

    _event_type: ClassVar[type[VirtualEvent]]
    """The event class of the device type. Set by the subclass of each device type."""

    _resolve: ClassVar[Callable[[Any], torch.device]]
    """Converts the `device` argument to a device with an index. Set by the subclass of each device type."""

    priority = 0
    stream_id = 0
    cuda_stream = native_handle = sycl_queue = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device = type(self)._resolve(device)
        self.priority = priority

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and highest priority, as on CUDA."""
        return 0, -1

    @property
    def device_index(self) -> int:
        return self.device.index

    @property
    def device_type(self) -> int:
        """The value of `c10::DeviceType`."""
        return DEVICE_TYPE_INDEX[self.device.type]

    def is_capturing(self) -> bool:
        """Return False: no CUDA graph is captured. Optimizers call this."""
        return False

    def wait_event(self, event: VirtualEvent) -> None:
        """Return immediately, because every event has completed."""

    def wait_stream(self, stream: VirtualStream) -> None:
        """Return immediately, because every stream is empty."""

    def record_event(self, event: VirtualEvent | None = None) -> VirtualEvent:
        return type(self)._event_type() if event is None else event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Return at once: nothing is queued."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VirtualStream) and self.device == other.device

    def __hash__(self) -> int:
        return hash((VirtualStream, self.device))

    def __repr__(self) -> str:
        return f"<virtual stream of {self.device}>"


class VirtualEvent:
    """Replacement for `torch.cuda.Event`. It has always completed, and its elapsed time is 0."""

    event_id = 0
    cuda_event = native_handle = sycl_event = 0
    device: torch.device | None = None
    """Device on which it was last recorded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accept and ignore the arguments of `torch.cuda.Event` (timing, blocking, interprocess)."""

    def record(self, stream: Any = None) -> None:
        """Only store the device, because there is no queue in which to record the event."""
        self.device = getattr(stream, "device", None)

    def wait(self, stream: Any = None) -> None:
        """Return at once: the event has completed."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Return at once: the event has completed."""

    def elapsed_time(self, end_event: VirtualEvent) -> float:
        """Return 0.0 milliseconds, since nothing runs."""
        return 0.0

    def ipc_handle(self) -> bytes:
        """Raise an error: another process cannot wait for this event."""
        raise RuntimeError("an event of a virtual device cannot be shared with another process")

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> VirtualEvent:
        """Raise an error, as `ipc_handle` does."""
        raise RuntimeError("an event of a virtual device cannot be shared with another process")
