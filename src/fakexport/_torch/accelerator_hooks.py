"""Which accelerator this build of torch says that it has.

A CPU-only wheel says of each type that it was not built for it; the object that is asked is one per process.
Here its table of methods is replaced while a block runs. Seen on torch 2.11 to 2.13.

Source: `aten/src/ATen/DeviceAccelerator.cpp`; `aten/src/ATen/detail/AcceleratorHooksInterface.h`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from .context_stack import ContextStack
from .device_guard import library_path
from .method_table import MethodTable, made_once, method_of, method_positions, table_of

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
        stock_is_built = method_of(self._hooks, positions["isBuilt"], _ASKS)
        stock_has_context = method_of(self._hooks, positions["hasPrimaryContext"], _ASKS_OF_INDEX)
        # C++ asks on the thread that uses the device: one that emulates none gets the truth.
        self._answers: ContextStack[bool | None] = ContextStack(f"fakexport {device_type}")

        def is_built(hooks: int) -> bool:
            answer = self._answers.top(None)
            return bool(stock_is_built(hooks)) if answer is None else answer

        def has_context(hooks: int, index: int) -> bool:
            # Otherwise the engine would ask the driver for its streams.
            return self._answers.top(None) is None and bool(stock_has_context(hooks, index))

        self._table = MethodTable(
            self._hooks,
            len(positions) + 1,
            {
                positions["isBuilt"]: _ASKS(is_built),
                positions["hasPrimaryContext"]: _ASKS_OF_INDEX(has_context),
            },
        )
        self._lock = threading.Lock()
        self._users = 0
        self._stock_table = 0

    @contextmanager
    def answering(self, is_built: bool) -> Iterator[None]:
        """Enter a context in which torch says this of the type. It may be nested, and overlap in threads."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._stock_table = table_of(self._hooks)
                self._put(self._table.address)
        entry = self._answers.push(is_built)
        try:
            yield
        finally:
            self._answers.close(entry)
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._put(self._stock_table)

    def _put(self, table: int) -> None:
        ctypes.c_void_p.from_address(self._hooks).value = table


@contextmanager
def only_accelerator(device_type: str) -> Iterator[None]:
    """Enter a context in which torch says that it was built for this accelerator, and for no other.

    C++ allows for one alone: "Cannot have both XPU and cuda.".
    """
    with ExitStack() as stack:
        for other in _HOOKS:
            stack.enter_context(accelerator_hooks(other).answering(other == device_type))
        yield


@made_once
def accelerator_hooks(device_type: str) -> AcceleratorHooks:
    return AcceleratorHooks(device_type)
