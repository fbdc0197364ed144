"""Torch's query functions replaced by answers for a list of virtual devices, and put back afterwards.

`torch.cuda`, `torch.xpu` and `torch.mps` ask compiled-in bindings that a CPU-only wheel does not have. Seen
on torch 2.11 to 2.13.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.accelerator
import torch.backends.mps
import torch.cuda
import torch.mps
import torch.xpu

from .accelerator_queries import AcceleratorQueries
from .attention_backend import AttentionDevice, attention_answers
from .device_queries import Backend, DeviceAnswers, MpsBackend
from .patching import Patches, original_of
from .wheel_answers import wheel_patches

_PRIVATE = (
    "_lazy_init",
    "_lazy_call",
    "_exchange_device",
    "_maybe_exchange_device",
    "_sleep",
    "_record_memory_history",
    "_dump_snapshot",
)


def query_patches(devices: Mapping[str, Sequence[DeviceAnswers]], present: str = "cpu") -> Patches:
    """Return a context in which torch answers for exactly these devices.

    A type that is not in `devices` answers that it has none, whatever this machine really has: the
    answer belongs to the target.

    Args:
        devices: Device type (`cuda`, `xpu`, `mps`) to its devices in index order. The first type that
            has any is what `torch.accelerator` speaks of.
        present: All devices that exist, as text, for the error about one that does not.
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
        if original_of(torch.version, "cuda") is None and original_of(torch.version, "hip") is None:
            replacements |= wheel_patches(lambda: first.capability or (0, 0), is_rocm=first.is_rocm)
        elif not first.is_rocm:  # The installed wheel knows what it was built for.
            replacements = {
                place: answer
                for place, answer in replacements.items()
                if answer not in (cuda.get_arch_list, cuda.get_gencode_flags)
            }
    return Patches(replacements)


def _attending(device: DeviceAnswers) -> AttentionDevice:
    return AttentionDevice("cuda", device.capability or (0, 0), device.is_rocm)


# A wheel without CUDA has no such functions; a build with it writes marks into a profile that is not taken.
_MARKERS = ("range_push", "range_pop", "range_start", "range_end", "mark")


def _no_marker(*args: Any, **kwargs: Any) -> int:
    return 0


def _device_module_answer(chosen: Backend | None) -> Callable[..., ModuleType]:
    original = original_of(torch, "get_device_module")

    @functools.wraps(original.__wrapped__)  # The original is a cached function; Dynamo needs the one inside.
    def get_device_module(device: torch.device | str | None = None) -> ModuleType:
        if device is None:
            device = "cpu" if chosen is None else chosen.device_type
        return original(device)  # type: ignore[no-any-return]

    return get_device_module


def _replacements(
    answers: object, package: ModuleType, private: Sequence[str] = ()
) -> dict[tuple[Any, str], Callable[..., Any]]:
    """Return `(owner, name) -> answer` for every name of the package that `answers` can answer.

    Owners are the package, and for a function of Python its own code: it answers the same under a name that
    was imported earlier. A class is replaced where it is defined too.
    """
    found: dict[tuple[Any, str], Callable[..., Any]] = {}
    for name in sorted(vars(package).keys() & {*dir(answers)}):
        if name.startswith("_") and name not in private:
            continue
        original, answer = original_of(package, name), getattr(answers, name)
        found[package, name] = answer
        function = getattr(original, "__wrapped__", original)
        if isinstance(function, FunctionType) and name not in private:
            found[function, "__code__"] = answer
        elif isinstance(original, type):
            found[sys.modules[original.__module__], name] = answer
    return found
