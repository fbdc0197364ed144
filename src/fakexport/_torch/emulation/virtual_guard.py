"""A device guard for a device that does not exist: a C++ object with no-op methods.

It is a copy of the CPU's guard, which also does nothing. Methods whose results for the CPU would be wrong are
replaced: with `cpu` as the current device, `x.to("cuda")` would silently stay on `cpu`, and the autograd
engine needs streams on the tensors' device. Seen on torch 2.11 to 2.13.

Source: `c10/core/impl/DeviceGuardImplInterface.h`; `c10/core/Device.h`; `c10/core/Stream.h`;
`aten/src/ATen/native/TensorConversions.cpp:ensure_has_index`; `torch/csrc/autograd/engine.cpp`.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
from collections.abc import Callable
from typing import Any

import torch

from .guard_layout import DEVICE_TYPE_INDEX, check_layout, packed_device
from .method_table import MethodTable, method_positions

__all__ = ["DEVICE_TYPE_INDEX", "VirtualGuard", "has_streams", "missing_streams", "packed_device"]

_HEADER = "c10/core/impl/DeviceGuardImplInterface.h"
# The autograd engine keeps one stream per index, and fake tensors can have any index that `DeviceIndex`
# allows.
_MOST_DEVICES = 127

_DEVICE = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p)
_COUNT = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)
_RECORD = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int8, ctypes.c_int
)
_BLOCK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class _Stream(ctypes.Structure):
    _fields_ = (("device", ctypes.c_uint16), ("id", ctypes.c_int64))


_STREAM = ctypes.CFUNCTYPE(_Stream, ctypes.c_void_p, ctypes.c_uint16)

# `getStream(device)` returns the device's default stream. It is machine code, because a `ctypes` function
# can receive a struct from C++ but cannot return one.
_GET_STREAM = {
    "x86_64": bytes.fromhex("0fb7c6 31d2 c3"),  # movzx eax, si; xor edx, edx; ret
    "aarch64": bytes.fromhex("203c0053 010080d2 c0035fd6"),  # uxth w0, w1; mov x1, 0; ret
}


class VirtualGuard:
    """The guard of one device type. C++ stores its address, so it must live as long as the process.

    The methods that set the current device are not replaced with Python functions: C++ calls them from
    destructors, possibly while a Python exception is propagating, and then Python code must not run.

    Args:
        guard_address: Function that returns the address of a device type's guard. It is called for `cpu` and
            `meta`.

    Raises:
        OSError: The guards of this torch build have an unknown layout.
    """

    def __init__(self, device_type: str, guard_address: Callable[[str], int | None]) -> None:
        positions = method_positions(_HEADER)
        check_layout(guard_address, positions)
        replaced: dict[str, Any] = {
            "getDevice": _DEVICE(lambda guard: _current_device(device_type)),
            "deviceCount": _COUNT(lambda guard: _MOST_DEVICES),
            # Nothing is queued, so every event has already completed.
            "record": _RECORD(lambda guard, event, stream, index, flag: None),
            "block": _BLOCK(lambda guard, event, stream: None),
        }
        if has_streams():
            replaced["getStream"] = _stream_function()
        cpu = guard_address("cpu")
        assert cpu is not None
        by_position = {positions[name]: function for name, function in replaced.items()}
        self._table = MethodTable(cpu, len(positions) + 1, by_position)
        self._object = ctypes.c_void_p(self._table.address)
        self.address = ctypes.addressof(self._object)


def has_streams() -> bool:
    """Return whether guards can provide streams on this machine, which backward passes need."""
    return missing_streams() is None


@functools.cache
def missing_streams() -> str | None:
    """Return why guards cannot provide streams on this machine, as a sentence, or None if they can."""
    if platform.system() != "Linux" or platform.machine() not in _GET_STREAM:
        return "a backward pass on fake tensors needs Linux on x86-64 or Arm64"
    try:
        _stream_function()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _current_device(device_type: str) -> int:
    try:
        index = 0 if device_type == "mps" else getattr(torch, device_type).current_device()
    except Exception:  # Outside of emulation. C++ calls this function, so it must not raise.
        index = -1
    return packed_device(DEVICE_TYPE_INDEX[device_type], index)


@functools.cache
def _stream_function() -> Any:
    """Return `getStream` for virtual guards, in a memory page that is executable and read-only."""
    page = _code_page(_GET_STREAM[platform.machine()])
    function: Any = _STREAM(page)
    return function


def _code_page(code: bytes) -> int:
    """Return the address of a new memory page that contains this machine code.

    The page is never writable and executable at the same time, and is never freed.

    Raises:
        OSError: The system does not allow such a page. The message names policies that may be the cause.
    """
    c = ctypes.CDLL(None, use_errno=True)
    c.mmap.restype = ctypes.c_void_p
    c.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    c.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    page = c.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, private, -1, 0)
    if page in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "no memory for a page of executable code")
    ctypes.memmove(page, code, len(code))
    _flush_instructions(page, len(code))
    if c.mprotect(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise OSError(
            ctypes.get_errno(),
            "the system does not allow machine code that is written at run time (SELinux `execmem`, "
            "systemd `MemoryDenyWriteExecute`, or PaX): backward passes on fake tensors require it",
        )
    return int(page)


def _flush_instructions(start: int, length: int) -> None:
    """Flush the instruction cache, which Arm processors keep separately from the data cache.

    Raises:
        OSError: libgcc is missing or has no `__clear_cache`.
    """
    if platform.machine() == "aarch64":
        library = ctypes.CDLL("libgcc_s.so.1")
        if not hasattr(library, "__clear_cache"):
            raise OSError(
                "libgcc has no `__clear_cache`: machine code cannot be written at run time on this system"
            )
        flush = library["__clear_cache"]
        flush.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        flush.restype = None
        flush(start, start + length)
