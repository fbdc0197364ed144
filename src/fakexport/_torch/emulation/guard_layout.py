"""Check that the vtables of device guards match torch's headers, without calling their methods.

Calling a method at the wrong position would pass wrong arguments and crash the process. The methods of the
guards of `cpu` and `meta` return constants, so this module reads the constants from the machine code. If it
cannot decode any method, it calls the methods in a subprocess. Seen on torch 2.11 to 2.13.

Source: `c10/core/impl/DeviceGuardImplInterface.h:NoOpDeviceGuardImpl`.
"""

from __future__ import annotations

import ctypes
import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping

import torch

from .method_table import method_of, table_of

DEVICE_TYPE_INDEX = {"cpu": 0, "cuda": 1, "xpu": 12, "mps": 13, "meta": 14}
"""Values of `c10::DeviceType`. They are serialized in checkpoints, so torch cannot renumber them."""

# `[endbr64] [push rbp; mov rbp, rsp] [xor edx, edx] (xor eax, eax | mov eax, VALUE) [...] ret`
_X86 = re.compile(
    rb"(?:\xf3\x0f\x1e\xfa)?(?:\x55\x48\x89\xe5)?(?:\x31\xd2)?"
    rb"(?:\x31\xc0|\xb8(?P<value>.{4}))(?:\x31\xd2)?\x5d?\xc3",
    re.DOTALL,
)
_MOST_CODE_BYTES = 24
_ASKED = ("type", "getDevice", "getStream")
_PROBE = (
    "import json, sys\n"
    "from fakexport._torch.emulation import device_guard, guard_layout\n"
    "print(guard_layout.call_methods(device_guard.guard_address, json.loads(sys.argv[1])))"
)


def packed_device(type_index: int, device_index: int) -> int:
    """Return a `c10::Device` as C++ functions return it: two signed bytes."""
    return (device_index & 0xFF) << 8 | type_index


def check_layout(guard_address: Callable[[str], int | None], positions: Mapping[str, int]) -> None:
    """Compare the results of the `cpu` and `meta` guards with the expected values.

    Raises:
        OSError: The results differ, so methods are not at the positions that the header implies.
    """
    found: list[int | None] | list[int] = _read_methods(guard_address, positions)
    if not any(found):
        found = _called_elsewhere(positions)
    if found != _expected():
        raise OSError(f"torch {torch.__version__} has an unknown layout of device guards")


def call_methods(guard_address: Callable[[str], int | None], positions: Mapping[str, int]) -> list[int]:
    """Call the methods and return their results. This may crash the process."""
    function = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p, ctypes.c_uint16)
    return [
        method_of(_address(guard_address, kind), positions[name], function)(
            _address(guard_address, kind), packed_device(DEVICE_TYPE_INDEX[kind], -1)
        )
        for kind in ("cpu", "meta")
        for name in _ASKED
    ]


def _expected() -> list[int]:
    """Return the low 16 bits of each expected result. Types are sign-extended; devices have index -1."""
    nowhere = {kind: packed_device(DEVICE_TYPE_INDEX[kind], -1) for kind in ("cpu", "meta")}
    return [
        answer
        for kind in ("cpu", "meta")
        for answer in (DEVICE_TYPE_INDEX[kind], nowhere[kind], nowhere[kind])
    ]


def _read_methods(
    guard_address: Callable[[str], int | None], positions: Mapping[str, int]
) -> list[int | None]:
    """Return the constants that the methods return, read from their machine code.

    An entry is None if the code cannot be decoded.
    """
    found: list[int | None] = []
    for kind in ("cpu", "meta"):
        for name in _ASKED:
            entry = table_of(_address(guard_address, kind)) + positions[name] * ctypes.sizeof(ctypes.c_void_p)
            method = ctypes.c_void_p.from_address(entry).value
            value = None if method is None else _constant(ctypes.string_at(method, _MOST_CODE_BYTES))
            found.append(None if value is None else value & 0xFFFF)
    return found


def _constant(code: bytes) -> int | None:
    """Return the constant that a function returns, or None if the function does anything else."""
    if platform.machine() in ("x86_64", "AMD64"):
        found = _X86.match(code)
        return None if found is None else int.from_bytes(found["value"] or b"\0", "little")
    if platform.machine() in ("aarch64", "arm64"):
        return _constant_on_arm([int.from_bytes(code[at : at + 4], "little") for at in range(0, 24, 4)])
    return None


def _constant_on_arm(words: list[int]) -> int | None:
    """Decode `[bti c] [mov x1, 0] (movz | movn) w0, VALUE [mov x1, 0] ret`."""
    value = None
    for word in words:
        if word == 0xD65F03C0:  # ret
            return value
        if word & 0xFFE0001F == 0x52800000:  # movz w0, VALUE
            value = word >> 5 & 0xFFFF
        elif word & 0xFFE0001F == 0x12800000:  # movn w0, VALUE
            value = ~(word >> 5 & 0xFFFF) & 0xFFFFFFFF
        elif word not in (0xD503245F, 0xD2800001, 0x52800001):
            return None
    return None


def _called_elsewhere(positions: Mapping[str, int]) -> list[int]:
    """Call the methods in a subprocess, and return the results. If it crashes, return an empty list."""
    asked = json.dumps({name: positions[name] for name in _ASKED})
    command = [sys.executable, "-c", _PROBE, asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(number) for number in re.findall(r"\d+", done.stdout)] if done.returncode == 0 else []


def _address(guard_address: Callable[[str], int | None], device_type: str) -> int:
    address = guard_address(device_type)
    assert address is not None
    return address
