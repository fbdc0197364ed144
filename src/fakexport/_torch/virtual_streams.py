"""Streams and events of virtual devices: ordered by nothing, finished at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from .virtual_guard import DEVICE_TYPE_INDEX


class VirtualStream:
    """Stands for `torch.cuda.Stream` on a device that runs nothing.

    Args:
        device: The virtual device, its index, or None for the current one.
        priority: Kept, and without effect.
    """

    _event_type: ClassVar[type[VirtualEvent]]
    """The event class of the device type. Set by its subclass."""

    _resolve: ClassVar[Callable[[Any], torch.device]]
    """From what `device` may be to the device, with index. Set by the subclass of each device type."""

    priority = 0
    stream_id = 0
    cuda_stream = native_handle = sycl_queue = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device = type(self)._resolve(device)
        self.priority = priority

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority, as CUDA has them."""
        return 0, -1

    @property
    def device_index(self) -> int:
        return self.device.index

    @property
    def device_type(self) -> int:
        """Number of the device type, as `c10::DeviceType` has it."""
        return DEVICE_TYPE_INDEX[self.device.type]

    def is_capturing(self) -> bool:
        """No: no graph of kernels is captured where none runs. Optimizers ask."""
        return False

    def wait_event(self, event: VirtualEvent) -> None:
        """Return at once: every event has happened."""

    def wait_stream(self, stream: VirtualStream) -> None:
        """Return at once: every stream is empty."""

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
    """Stands for `torch.cuda.Event`: has always happened, and took no time."""

    event_id = 0
    cuda_event = native_handle = sycl_event = 0
    device: torch.device | None = None
    """Where it was recorded last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what `torch.cuda.Event` takes (timing, blocking, interprocess), without effect."""

    def record(self, stream: Any = None) -> None:
        """Return at once: there is no queue to mark."""
        self.device = getattr(stream, "device", None)

    def wait(self, stream: Any = None) -> None:
        """Return at once: the event has happened."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Return at once: the event has happened."""

    def elapsed_time(self, end_event: VirtualEvent) -> float:
        """Return milliseconds, as `torch.cuda.Event.elapsed_time` gives them: 0.0, since nothing runs."""
        return 0.0

    def ipc_handle(self) -> bytes:
        """Raise: another process cannot wait for what does not run."""
        raise RuntimeError("an event of a virtual device cannot be shared with another process")

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> VirtualEvent:
        """Raise, as `ipc_handle` does."""
        raise RuntimeError("an event of a virtual device cannot be shared with another process")
