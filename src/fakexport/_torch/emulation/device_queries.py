"""Answer a model's device queries from a device profile instead of a driver.

Each device type has a class, and `query_patches.py` replaces torch's functions with methods of the class.
Seen on torch 2.11 to 2.13.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

# These modules must be imported before functions are patched: they query the devices once, on import, and
# `torch._inductor` would then use CUDA functions that a CPU-only build does not have.
import torch._dynamo
import torch.cuda
import torch.mps
import torch.xpu

from fakexport._torch.patching import Patches, stock_function

from .absent_devices import AbsentDevice, absence
from .fake_tensors import active_fake_mode, forget_results
from .virtual_streams import VirtualEvent, VirtualStream


@dataclass(frozen=True)
class DeviceAnswers:
    """The query results for one virtual device."""

    name: str  # Result of `get_device_name`, such as "NVIDIA H100 80GB HBM3".
    capability: tuple[int, int] | None  # `(major, minor)`, or None for types without one (xpu, mps).
    memory_bytes: int  # Total and free memory of `mem_get_info`; they are equal because nothing is allocated.
    architecture: str  # The device's entry in `get_arch_list`, such as "gfx942"; "" if none, and for CUDA.
    is_rocm: bool  # Whether it is a ROCm device, which torch presents as type `cuda`.
    has_native_bfloat16: bool  # Result of `is_bf16_supported(including_emulation=False)`.
    properties: Mapping[str, object] = field(default_factory=dict)


class _CurrentDevice(threading.local):
    """The current device. As with a real driver, each thread has its own current device."""

    _index = 0

    @property
    def index(self) -> int:
        return self._index

    @index.setter
    def index(self, index: int) -> None:
        if index != self._index:
            self._index = index
            forget_results()


class Backend:
    """The query API of one device type. Each method is named after the torch function that it replaces."""

    def __init__(self, device_type: str, devices: Sequence[DeviceAnswers], present: str = "cpu") -> None:
        self.device_type = device_type
        self._present = present
        self._devices = tuple(devices)
        self._properties: dict[int, SimpleNamespace] = {}
        self._thread = _CurrentDevice()
        # These must be classes, because torch checks values with `isinstance(value, torch.cuda.Stream)`.
        self.Event = type("Event", (VirtualEvent,), {})
        self.Stream = type("Stream", (VirtualStream,), {"_resolve": self._device, "_event_type": self.Event})

    def _device(self, device: Any = None) -> torch.device:
        return torch.device(self.device_type, self._index(device))

    def _index(self, device: Any = None) -> int:
        if not self._devices:
            raise self._absent(self.device_type, f"No {self.device_type.upper()} devices are available")
        index = self._asked_index(device)
        if not 0 <= index < len(self._devices):
            # The driver's message, with the same exception type.
            raise self._absent(
                f"{self.device_type}:{index}", f"{self.device_type.upper()} error: invalid device ordinal"
            )
        return index

    def _absent(self, device: str, question: str) -> AbsentDevice:
        return AbsentDevice(f"{question}: {absence(device, self._present)}")

    def _asked_index(self, device: Any) -> int:
        if isinstance(device, int):
            return device
        if device is None:
            return self._thread.index
        if hasattr(device, "idx"):  # `torch.cuda.device(1)`, the context manager
            return int(device.idx)
        parsed = torch.device(device)
        if parsed.type != self.device_type:
            raise ValueError(f"Expected a {self.device_type} device, but got: {device}")
        return self._thread.index if parsed.index is None else parsed.index

    def _described_index(self, device: Any = None) -> int:
        """Return the device index of a query. Reject an invalid index with the error of `torch.cuda`."""
        index = self._asked_index(device)
        if self._devices and not 0 <= index < len(self._devices):
            raise self._absent(f"{self.device_type}:{index}", "Invalid device id")
        return self._index(index)

    def _of(self, device: Any = None) -> DeviceAnswers:
        return self._devices[self._described_index(device)]

    def is_available(self) -> bool:
        return bool(self._devices)

    _is_compiled = is_initialized = is_available

    def device_count(self) -> int:
        return len(self._devices)

    def init(self) -> None:
        self._index()

    def _lazy_init(self) -> None:
        """Skip initialization if a fake mode is active; otherwise run torch's initialization.

        Outside of a fake mode, C++ also calls this method. If it returned without an error, torch would
        consider the device initialized for the rest of the process, and `torch.ones(1, device="cuda")` would
        raise a different error.
        """
        if self._devices and active_fake_mode() is not None:
            return
        module, is_initialized, lazy_init = _STOCK_INITIALISATION[self.device_type]
        with Patches({(module, "is_initialized"): is_initialized}):  # torch's `lazy_init` calls it first.
            lazy_init()

    def current_device(self) -> int:
        return self._index()

    def set_device(self, device: Any) -> None:
        if isinstance(device, int) and device < 0:
            return
        self._thread.index = self._index(device)

    def _exchange_device(self, device: int) -> int:
        if device < 0:
            return -1
        previous, self._thread.index = self._thread.index, self._index(device)
        return previous

    _maybe_exchange_device = _exchange_device

    def get_device_name(self, device: Any = None) -> str:
        return self._of(device).name

    def get_device_capability(self, device: Any = None) -> Any:
        answers = self._of(device)
        return answers.capability if answers.capability is not None else dict(answers.properties)

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        index = self._described_index(device)
        if index not in self._properties:  # Created on demand, because reads are recorded.
            self._properties[index] = _properties_of(self._devices[index])
        return self._properties[index]

    def can_device_access_peer(self, device: Any, peer_device: Any = None, *, peer: Any = None) -> bool:
        # `torch.cuda` and `torch.xpu` name the second argument differently.
        return self._index(device) != self._index(peer if peer_device is None else peer_device)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        total = self._devices[self._index(device)].memory_bytes
        return total, total

    def memory_allocated(self, device: Any = None) -> int:
        self._index(device)
        return 0

    max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated
    memory_cached = max_memory_cached = device_memory_used = memory_allocated

    def memory_stats(self, device: Any = None) -> Mapping[str, int]:
        self._index(device)
        return defaultdict(int)  # Every counter is 0.

    host_memory_stats = memory_stats

    def memory_stats_as_nested_dict(self, device: Any = None) -> dict[str, Any]:
        self._index(device)
        return {}

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        return f"{self._device(device)} is virtual: nothing is allocated on it"

    def memory_snapshot(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []

    def get_allocator_backend(self) -> str:
        return "native"

    def get_per_process_memory_fraction(self, device: Any = None) -> float:
        self._index(device)
        return 1.0

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no memory, queue or generator to act on."""

    empty_cache = synchronize = ipc_collect = reset_peak_memory_stats = _nothing
    reset_accumulated_memory_stats = reset_max_memory_allocated = reset_max_memory_cached = _nothing
    reset_peak_host_memory_stats = reset_accumulated_host_memory_stats = _nothing
    set_per_process_memory_fraction = _lazy_call = _nothing
    set_sync_debug_mode = _sleep = _record_memory_history = _nothing

    def _leave_state(self, *args: Any, **kwargs: Any) -> None:
        """Write back the CPU generator's state unchanged, because virtual devices have no generators."""
        torch.default_generator.set_state(torch.default_generator.get_state())

    manual_seed = manual_seed_all = seed = seed_all = set_rng_state = set_rng_state_all = _leave_state

    def _refused(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: a virtual device has no addresses, measurements or recordings to return."""
        raise RuntimeError(
            f"this call is not available on a virtual {self.device_type} device, because nothing runs on it. "
            "Guard the call: `if not torch.compiler.is_exporting():`"
        )

    graph_pool_handle = make_graphed_callables = get_stream_from_external = current_blas_handle = _refused
    caching_allocator_alloc = caching_allocator_delete = caching_allocator_enable = _dump_snapshot = _refused
    utilization = temperature = power_draw = clock_rate = memory_usage = _refused

    def get_sync_debug_mode(self) -> int:
        return 0

    def initial_seed(self) -> int:
        return torch.initial_seed()

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """Return the CPU generator's state, because virtual devices have no generators."""
        return torch.get_rng_state()

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [torch.get_rng_state() for _ in self._devices]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        # As in `torch.cuda`, the default result is True for older devices, too, because they can store and
        # convert bfloat16.
        return bool(self._devices) and (including_emulation or self._of().has_native_bfloat16)

    def is_tf32_supported(self) -> bool:
        capability = self._of().capability if self._devices else None
        return capability is not None and capability >= (8, 0) and not self._of().is_rocm

    def is_current_stream_capturing(self) -> bool:
        return False

    def get_arch_list(self) -> list[str]:
        return sorted({device.architecture for device in self._devices if device.architecture})

    def get_gencode_flags(self) -> str:
        return ""  # `wheel_answers.py` has the flags of CUDA builds.

    def current_stream(self, device: Any = None) -> VirtualStream:
        stream: VirtualStream = self.Stream(device)
        return stream

    default_stream = current_stream

    def set_stream(self, stream: VirtualStream | None) -> None:
        if stream is not None:
            self._thread.index = self._index(stream.device)

    @contextmanager
    def stream(self, stream: VirtualStream | None) -> Iterator[None]:
        previous = self._thread.index
        self.set_stream(stream)
        try:
            yield
        finally:
            self._thread.index = previous


_STOCK_INITIALISATION: dict[str, tuple[ModuleType, Any, Any]] = {
    "cuda": (torch.cuda, stock_function(torch.cuda.is_initialized), torch.cuda._lazy_init),
    "xpu": (torch.xpu, stock_function(torch.xpu.is_initialized), torch.xpu._lazy_init),
}


class MpsBackend(Backend):
    """The query API of `torch.mps`, which takes no device index and has additional functions."""

    def current_allocated_memory(self) -> int:
        return 0

    driver_allocated_memory = current_allocated_memory

    def recommended_max_memory(self) -> int:
        return self._of().memory_bytes

    def is_macos_or_newer(self, major: int = 0, minor: int = 0) -> bool:
        return bool(self._devices)

    is_macos13_or_newer = is_macos_or_newer

    def is_built(self) -> bool:
        return bool(self._devices)


def _properties_of(device: DeviceAnswers) -> SimpleNamespace:
    major, minor = device.capability or (0, 0)
    return SimpleNamespace(
        name=device.name,
        major=major,
        minor=minor,
        total_memory=device.memory_bytes,
        is_integrated=0,
        is_multi_gpu_board=0,
        **device.properties,
    )
