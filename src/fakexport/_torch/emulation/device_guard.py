"""Register device guards for device types that this process cannot use.

Eager Python bindings (`uniform_`, `copy_`, indexing, `.to`) and the autograd engine get the device guard of a
tensor's device type from `libc10`. If there is none, they raise "PyTorch is not linked with support for cuda
devices". If no code catches that error, the interpreter aborts. Seen on torch 2.11 to 2.13.

Source: `c10/core/impl/DeviceGuardImplInterface.cpp`.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import torch

from fakexport._torch.patching import original_of

from .method_table import made_once
from .virtual_guard import DEVICE_TYPE_INDEX, VirtualGuard

_REGISTRY_SYMBOL = "_ZN3c104impl26device_guard_impl_registryE"


def library_path(name: str) -> Path:
    """Return the path of one of torch's shared libraries, such as `c10` or `torch_cpu`."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return Path(torch.__file__).parent / "lib" / f"lib{name}.{suffix}"


def _registry() -> ctypes.Array[ctypes.c_void_p]:
    """Return `c10::impl::device_guard_impl_registry`, an array of atomic pointers indexed by device type."""
    library = ctypes.CDLL(str(library_path("c10")))
    return (ctypes.c_void_p * (max(DEVICE_TYPE_INDEX.values()) + 1)).in_dll(library, _REGISTRY_SYMBOL)


def guard_address(device_type: str) -> int | None:
    """Return the address of the guard registered for `device_type`, or None."""
    return _registry()[DEVICE_TYPE_INDEX[device_type]]


@made_once
def _virtual_guard(device_type: str) -> VirtualGuard:
    return VirtualGuard(device_type, guard_address)


@functools.cache
def missing_guards() -> str | None:
    """Return why virtual guards cannot be registered in this process, as a clause, or None if they can."""
    if sys.platform == "win32":
        return "torch for Windows lays out its C++ objects differently from Linux and macOS"
    try:
        _virtual_guard("cuda")
    except (OSError, ValueError) as error:
        return f"no device guard can be registered ({error})"
    return None


class VirtualGuards:
    """Context manager that registers no-op guards for device types. Blocks in different threads may overlap.

    When the last block ends, the previous guard is restored. If there was none, the virtual guard stays
    registered, because without a guard, a fake tensor that outlives the block would abort the interpreter.
    torch's errors about real tensors on such a device do not change, because they come from missing kernels
    and not from the guard.

    Raises:
        OSError, ValueError: Guards cannot be registered; `missing_guards` explains why.
    """

    def __init__(self, device_types: Iterable[str]) -> None:
        self._types = tuple(device_types)

    def __enter__(self) -> None:
        guards = {device_type: _virtual_guard(device_type) for device_type in self._types}
        if not guards:
            return
        with _lock:
            registry = _registry()
            for device_type, guard in guards.items():
                if _uses[device_type] == 0:
                    _previous[device_type] = guard_address(device_type)
                    registry[DEVICE_TYPE_INDEX[device_type]] = guard.address
                _uses[device_type] += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._types:
            return
        with _lock:
            registry = _registry()
            for device_type in self._types:
                _uses[device_type] -= 1
                address = _previous[device_type]
                if _uses[device_type] == 0 and address is not None:
                    registry[DEVICE_TYPE_INDEX[device_type]] = address


# The registry is global to the process.
_lock = threading.Lock()
_uses: Counter[str] = Counter()
_previous: dict[str, int | None] = {}


def real_device_count(device_type: str) -> int:
    """Return the number of devices of a type on this machine, ignoring emulation."""
    module = getattr(torch, device_type)
    is_possible = missing_guards() is not None or guard_address(device_type)
    count: int = original_of(module, "device_count")() if is_possible else 0
    return count
