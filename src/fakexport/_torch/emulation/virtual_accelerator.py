"""Make torch report one accelerator, so that integers as devices (`x.to(1)`) and backward passes work.

C++ interprets an integer as an index of the accelerator that torch was built for, and the autograd engine
queries that accelerator before it accumulates gradients. A CPU-only build raises "Cannot access accelerator
device when none is available.". torch gets this information from a singleton, the hooks object of the device
type. This module replaces the object's vtable while a block runs. Seen on torch 2.11 to 2.13.

Source: `torch/csrc/utils/python_arg_parser.h:toDevice`; `aten/src/ATen/DeviceAccelerator.cpp`;
`aten/src/ATen/detail/AcceleratorHooksInterface.h`; `torch/csrc/autograd/input_buffer.cpp:InputBuffer::add`.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.autograd.graph

from fakexport._torch.context_stack import ContextStack
from fakexport._torch.patching import Patches, original_of

from .device_guard import library_path
from .method_table import MethodTable, made_once, method_of, method_positions, table_of
from .virtual_guard import has_streams, missing_streams

_HOOKS = {
    "cuda": ("_ZN2at6detail12getCUDAHooksEv", "ATen/detail/CUDAHooksInterface.h"),
    "xpu": ("_ZN2at6detail11getXPUHooksEv", "ATen/detail/XPUHooksInterface.h"),
    "mps": ("_ZN2at6detail11getMPSHooksEv", "ATen/detail/MPSHooksInterface.h"),
}
_BASE = "ATen/detail/AcceleratorHooksInterface.h"
_ASKS = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)
_ASKS_OF_INDEX = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int8)


class AcceleratorHooks:
    """The hooks object of one device type, which tells torch whether this build supports the type."""

    def __init__(self, device_type: str) -> None:
        getter, header = _HOOKS[device_type]
        get_hooks = getattr(ctypes.CDLL(str(library_path("torch_cpu"))), getter)
        get_hooks.restype = ctypes.c_void_p
        self._hooks: int = get_hooks()
        positions = method_positions(header, _BASE)
        stock_is_built = method_of(self._hooks, positions["isBuilt"], _ASKS)
        stock_has_context = method_of(self._hooks, positions["hasPrimaryContext"], _ASKS_OF_INDEX)
        # C++ calls the hooks in the thread that uses the device. Threads without emulation get torch's
        # answer.
        self._answers: ContextStack[bool | None] = ContextStack(f"fakexport {device_type}")

        def is_built(hooks: int) -> bool:
            answer = self._answers.top(None)
            return bool(stock_is_built(hooks)) if answer is None else answer

        def has_context(hooks: int, index: int) -> bool:
            # If this returned True, the autograd engine would request streams from the driver.
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
        """Enter a context in which torch reports `is_built` for this type.

        Contexts can be nested, and can overlap in different threads.
        """
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
    """Enter a context in which torch reports that it was built for this accelerator only.

    C++ rejects a build with several accelerators: "Cannot have both XPU and cuda.".
    """
    with ExitStack() as stack:
        for other in _HOOKS:
            stack.enter_context(accelerator_hooks(other).answering(other == device_type))
        yield


@made_once
def accelerator_hooks(device_type: str) -> AcceleratorHooks:
    return AcceleratorHooks(device_type)


def virtual_accelerator(device_type: str) -> AbstractContextManager[None]:
    """Return a context in which torch interprets an integer device as an index of this device type.

    If device guards cannot provide streams on this machine, the context does nothing.
    """
    built_for = torch._C._accelerator_getAccelerator()
    is_that_already = built_for is not None and built_for.type == device_type
    return nullcontext() if is_that_already or not has_streams() else only_accelerator(device_type)


def virtual_backward(device_type: str) -> Patches:
    """Return a context in which `torch.autograd` runs backward passes over fakes of this device type.

    If device guards cannot provide streams on this machine (macOS), torch's error is raised with the reason
    appended.
    """
    stock = original_of(torch.autograd.graph, "_engine_run_backward")

    @functools.wraps(stock)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if (reason := missing_streams()) is not None:
            try:
                return stock(*args, **kwargs)
            except RuntimeError as error:
                raise RuntimeError(f"{error} ({reason})") from error
        # Run in this thread: the engine has no worker thread for a device that does not exist.
        with only_accelerator(device_type), torch.autograd.set_multithreading_enabled(False):
            return stock(*args, **kwargs)

    return Patches(
        {
            (torch.autograd.graph, "_engine_run_backward"): run_backward,
            (torch.autograd, "_engine_run_backward"): run_backward,
        }
    )
