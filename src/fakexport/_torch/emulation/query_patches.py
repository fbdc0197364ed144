"""Replace torch's device query functions, so that they describe a list of virtual devices.

`torch.cuda`, `torch.xpu` and `torch.mps` call compiled bindings that a CPU-only build does not have. Seen
on torch 2.11 to 2.13.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.accelerator
import torch.backends.mps
import torch.cuda
import torch.mps
import torch.xpu

from fakexport._torch.patching import Patches, original_of

from .attention_backend import AttentionDevice, attention_answers
from .device_queries import Backend, DeviceAnswers, MpsBackend
from .wheel_answers import wheel_patches

_PRIVATE = (
    "_lazy_init", "_lazy_call", "_exchange_device", "_maybe_exchange_device", "_sleep",
    "_record_memory_history", "_dump_snapshot",
)  # fmt: skip


def query_patches(devices: Mapping[str, Sequence[DeviceAnswers]], present: str = "cpu") -> Patches:
    """Return a context in which torch reports exactly these devices.

    If a type is not in `devices`, torch reports no devices of that type, even if this machine has some,
    because the answers describe the target.

    Args:
        devices: Device type (`cuda`, `xpu`, `mps`) -> its devices in index order. `torch.accelerator` reports
            the first type that has devices.
    """
    cuda = Backend("cuda", devices.get("cuda", ()), present)
    xpu = Backend("xpu", devices.get("xpu", ()), present)
    mps = MpsBackend("mps", devices.get("mps", ()), present)
    chosen = next((b for b in (cuda, xpu, mps) if b.is_available()), None)
    replacements: dict[tuple[Any, str], Any] = {
        **_replacements(cuda, torch.cuda, _PRIVATE),
        **_replacements(xpu, torch.xpu, (*_PRIVATE, "_is_compiled")),
        **_replacements(mps, torch.mps),
        **_replacements(mps, torch.backends.mps),
        **_replacements(AcceleratorQueries(chosen), torch.accelerator),
        (torch, "get_device_module"): _device_module_answer(chosen),
        **{(torch.cuda.nvtx, name): _no_marker for name in _MARKERS},
        **{(torch.cuda.profiler, name): _no_marker for name in ("start", "stop", "init")},
    }
    if cuda.is_available():
        replacements |= attention_answers(lambda device: _attending(cuda._of(device)))
        first = cuda._of(0)
        if not original_of(torch.version, "hip" if first.is_rocm else "cuda"):  # A build for other devices.
            replacements |= wheel_patches(lambda: first.capability or (0, 0), is_rocm=first.is_rocm)
        elif not first.is_rocm:  # The installed build reports its own architectures.
            replacements = {
                place: answer
                for place, answer in replacements.items()
                if answer not in (cuda.get_arch_list, cuda.get_gencode_flags)
            }
    return Patches(replacements)


def _attending(device: DeviceAnswers) -> AttentionDevice:
    return AttentionDevice("cuda", device.capability or (0, 0), device.is_rocm)


# A build without CUDA lacks these functions. A CUDA build would write markers for a profiler that is not
# running.
_MARKERS = ("range_push", "range_pop", "range_start", "range_end", "mark")


def _no_marker(*args: Any, **kwargs: Any) -> int:
    return 0


def _device_module_answer(chosen: Backend | None) -> Callable[..., ModuleType]:
    original = original_of(torch, "get_device_module")

    @functools.wraps(original.__wrapped__)  # The original is cached; Dynamo needs the inner function.
    def get_device_module(device: torch.device | str | None = None) -> ModuleType:
        if device is None:
            device = "cpu" if chosen is None else chosen.device_type
        return original(device)  # type: ignore[no-any-return]

    return get_device_module


def _replacements(
    answers: object, package: ModuleType, private: Sequence[str] = ()
) -> dict[tuple[Any, str], Callable[..., Any]]:
    """Return `(owner, name) -> answer` for every name of the package that `answers` implements.

    The owner is the package. The code of a Python function is also replaced, so that code that imported the
    function earlier gets the same results. A class is also replaced in the module that defines it.
    """
    found: dict[tuple[Any, str], Callable[..., Any]] = {}
    for name in sorted(vars(package).keys() & {*dir(answers)}):
        if name.startswith("_") and name not in private:
            continue
        original, answer = original_of(package, name), getattr(answers, name)
        found[package, name] = answer
        function = getattr(original, "__wrapped__", original)
        if inspect.isgeneratorfunction(function):  # `torch.mps.stream` of torch 2.15 is a context manager.
            function = original
        if isinstance(function, FunctionType) and name not in private:
            found[function, "__code__"] = answer
        elif isinstance(original, type):
            found[sys.modules[original.__module__], name] = answer
    return found


# The dtypes that torch's default capability reports: `c10/core/DeviceCapability.h`, all bits set.
_DTYPES = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}


# Function of `torch.accelerator` -> the method of the backend that replaces it.
_FORWARDED = {
    "current_device_index": "current_device", "current_device_idx": "current_device",
    "set_device_index": "set_device", "set_device_idx": "set_device",
    "current_stream": "current_stream", "set_stream": "set_stream", "synchronize": "_index",
    "get_memory_info": "mem_get_info", "memory_allocated": "memory_allocated",
    "max_memory_allocated": "memory_allocated", "memory_reserved": "memory_allocated",
    "max_memory_reserved": "memory_allocated", "memory_stats": "memory_stats",
    "reset_peak_memory_stats": "_index", "reset_accumulated_memory_stats": "_index",
}  # fmt: skip


class AcceleratorQueries:
    """Replaces functions of `torch.accelerator`. Each method is named after the function that it replaces."""

    def __init__(self, backend: Backend | None) -> None:
        self._backend = backend
        for name, asked in _FORWARDED.items():
            setattr(self, name, self._none if backend is None else getattr(backend, asked))

    def _none(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("Cannot access accelerator device when none is available.")

    def is_available(self) -> bool:
        return self._backend is not None

    def device_count(self) -> int:
        return 0 if self._backend is None else self._backend.device_count()

    def current_accelerator(self, check_available: bool = False) -> torch.device | None:
        return None if self._backend is None else torch.device(self._backend.device_type)

    def get_device_capability(self, device: Any = None, /) -> dict[str, Any]:
        if self._backend is None:
            self._none()
        else:
            self._backend._index(device)
        return {"supported_dtypes": set(_DTYPES)}

    @contextmanager
    def device_index(self, device: int | None, /) -> Iterator[None]:
        if device is None:
            yield
            return
        backend = self._backend or self._none()
        previous = backend._exchange_device(device)
        try:
            yield
        finally:
            backend._exchange_device(previous)

    def empty_cache(self) -> None:
        """Do nothing: there is no cache."""

    empty_host_cache = empty_cache
