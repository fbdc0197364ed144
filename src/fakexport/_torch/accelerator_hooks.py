"""Which accelerator this build of torch says that it has.

A CPU-only wheel says of each type that it was not built for it; the object that is asked is one per process.
Here its table of methods is replaced while a block runs. Seen on torch 2.11 to 2.13.

Source: `aten/src/ATen/DeviceAccelerator.cpp`; `aten/src/ATen/detail/AcceleratorHooksInterface.h`.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from .device_guard import library_path
from .method_table import MethodTable, method_positions, table_of

__all__ = ["AcceleratorHooks", "accelerator_hooks", "only_accelerator"]

_HOOKS = {
    "cuda": ("_ZN2at6detail12getCUDAHooksEv", "ATen/detail/CUDAHooksInterface.h"),
    "xpu": ("_ZN2at6detail11getXPUHooksEv", "ATen/detail/XPUHooksInterface.h"),
    "mps": ("_ZN2at6detail11getMPSHooksEv", "ATen/detail/MPSHooksInterface.h"),
}
_BASE = "ATen/detail/AcceleratorHooksInterface.h"
_ASKS = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)
_ASKS_OF_INDEX = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int8)


class AcceleratorHooks:
    """The process's hooks object of one device type, which torch asks whether it was built for that type."""

    def __init__(self, device_type: str) -> None:
        getter, header = _HOOKS[device_type]
        get_hooks = getattr(ctypes.CDLL(str(library_path("torch_cpu"))), getter)
        get_hooks.restype = ctypes.c_void_p
        self._hooks: int = get_hooks()
        positions = method_positions(header, _BASE)
        self._table = MethodTable(
            self._hooks,
            len(positions) + 1,
            {
                positions["isBuilt"]: _ASKS(lambda hooks: self._answers[-1]),
                # Otherwise the engine would ask the driver for its streams.
                positions["hasPrimaryContext"]: _ASKS_OF_INDEX(lambda hooks, index: False),
            },
        )
        self._lock = threading.Lock()
        self._answers: list[bool] = []
        self._stock_table = 0

    @contextmanager
    def answering(self, is_built: bool) -> Iterator[None]:
        """The context in which torch says this of the type. It may be nested."""
        with self._lock:
            self._answers.append(is_built)
            if len(self._answers) == 1:
                self._stock_table = table_of(self._hooks)
                self._put(self._table.address)
        try:
            yield
        finally:
            with self._lock:
                if len(self._answers) == 1:
                    self._put(self._stock_table)
                self._answers.pop()

    def _put(self, table: int) -> None:
        ctypes.c_void_p.from_address(self._hooks).value = table


@contextmanager
def only_accelerator(device_type: str) -> Iterator[None]:
    """The context in which torch says that it was built for this accelerator, and for no other.

    C++ allows for one alone: "Cannot have both XPU and cuda.".
    """
    with ExitStack() as stack:
        for other in _HOOKS:
            stack.enter_context(accelerator_hooks(other).answering(other == device_type))
        yield


@functools.cache
def accelerator_hooks(device_type: str) -> AcceleratorHooks:
    return AcceleratorHooks(device_type)
