"""A device guard for a device that does not exist: a C++ object that does nothing, and says where it is.

It is the CPU's own guard, which does nothing either, with other answers where the CPU's would be wrong:
`x.to("cuda")` would quietly stay on `cpu`, since that is the CPU guard's current device, and the autograd
engine needs streams that are on the tensors' device. Seen on torch 2.11 to 2.13.

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

from .method_table import MethodTable, method_of, method_positions

__all__ = ["DEVICE_TYPE_INDEX", "VirtualGuard", "has_streams", "packed_device"]

DEVICE_TYPE_INDEX = {"cpu": 0, "cuda": 1, "xpu": 12, "mps": 13, "meta": 14}
"""`c10::DeviceType` values; they are serialised in checkpoints, so torch cannot renumber them."""

_HEADER = "c10/core/impl/DeviceGuardImplInterface.h"
# The autograd engine keeps a stream for each index, and a fake may name any that a `DeviceIndex` can hold.
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

# `getStream(device)`: the default stream of that device. In machine code, since a `ctypes` function can take
# a structure from C++ and cannot return one to it.
_GET_STREAM = {
    "x86_64": bytes.fromhex("0fb7c6 31d2 c3"),  # movzx eax, si; xor edx, edx; ret
    "aarch64": bytes.fromhex("203c0053 010080d2 c0035fd6"),  # uxth w0, w1; mov x1, 0; ret
}


def packed_device(type_index: int, device_index: int) -> int:
    """A `c10::Device` as a function returns it: two signed bytes."""
    return (device_index & 0xFF) << 8 | type_index


class VirtualGuard:
    """The guard of one device type. C++ keeps its address, so it must live as long as the process.

    Methods that set the current device stay the CPU's: C++ calls them from destructors, while a Python
    exception may be on its way, and no Python code may run then.

    Args:
        device_type: `cuda`, `xpu` or `mps`.
        guard_address: From a device type to the address of its guard; asked for `cpu` and `meta`.

    Raises:
        OSError: this build of torch lays its guards out in another way than we know.
    """

    def __init__(self, device_type: str, guard_address: Callable[[str], int | None]) -> None:
        positions = method_positions(_HEADER)
        for known in ("cpu", "meta"):
            _check_layout(known, guard_address(known), positions)
        replaced: dict[str, Any] = {
            "getDevice": _DEVICE(lambda guard: _current_device(device_type)),
            "deviceCount": _COUNT(lambda guard: _MOST_DEVICES),
            # Nothing is queued, so every event has happened.
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


@functools.cache
def has_streams() -> bool:
    """Whether a guard can give streams on this machine; without them there is no backward pass.

    Not on other processors, and not where the system forbids a page that is written and then run.
    """
    if platform.system() != "Linux" or platform.machine() not in _GET_STREAM:
        return False
    try:
        _stream_function()
    except OSError:
        return False
    return True


def _check_layout(device_type: str, guard: int | None, positions: dict[str, int]) -> None:
    """Ask a guard what we know it answers. It must be one that answers as no other does."""
    assert guard is not None
    number = DEVICE_TYPE_INDEX[device_type]
    nowhere = packed_device(number, -1)
    is_as_known = (
        method_of(guard, positions["type"], _DEVICE)(guard) & 0xFF == number
        and method_of(guard, positions["getDevice"], _DEVICE)(guard) == nowhere
    )
    if is_as_known and has_streams():
        stream = method_of(guard, positions["getStream"], _STREAM)(guard, nowhere)
        is_as_known = (stream.device, stream.id) == (nowhere, 0)
    if not is_as_known:
        raise OSError(f"torch {torch.__version__} lays its device guards out in a way that is not known here")


def _current_device(device_type: str) -> int:
    try:
        index = 0 if device_type == "mps" else getattr(torch, device_type).current_device()
    except Exception:  # Outside emulation; C++ called us, so nothing may be raised.
        index = -1
    return packed_device(DEVICE_TYPE_INDEX[device_type], index)


@functools.cache
def _stream_function() -> Any:
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(_GET_STREAM[platform.machine()])
    function: Any = _STREAM(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    function.page = page  # lives as long as the function
    return function
