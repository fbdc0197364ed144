"""Torch's query functions replaced by answers for a list of virtual devices, and put back afterwards.

`torch.cuda`, `torch.xpu` and `torch.mps` ask compiled-in bindings that a CPU-only wheel does not have. Seen
on torch 2.11 to 2.13.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.accelerator
import torch.backends.mps
import torch.cuda
import torch.mps
import torch.xpu

from .accelerator_queries import AcceleratorQueries
from .device_queries import Backend, DeviceAnswers, MpsBackend
from .loaded_modules import LoadedModules
from .patching import Patches, original_of

# What a wheel of the field's default build says of itself; a CPU-only wheel says None.
_CUDA_VERSION = "13.0"
_HIP_VERSION = "7.0"

_PACKAGES = (torch.accelerator, torch.backends.mps, torch.cuda, torch.mps, torch.xpu)
_PREFIXES = tuple(f"{package.__name__}." for package in _PACKAGES)
_submodules = LoadedModules(lambda name, module: name.startswith(_PREFIXES), is_by_name=True)
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
    loaded = _submodules.find()
    replacements: dict[tuple[Any, str], Any] = {
        **_replacements(cuda, torch.cuda, loaded, _PRIVATE),
        **_replacements(xpu, torch.xpu, loaded, _PRIVATE),
        **_replacements(mps, torch.mps, loaded),
        **_replacements(mps, torch.backends.mps, loaded),
        **_replacements(AcceleratorQueries(chosen), torch.accelerator, loaded),
        (torch, "get_device_module"): _device_module_answer(chosen),
        **{(torch.cuda.nvtx, name): _no_marker for name in _MARKERS},
        **{(torch.cuda.profiler, name): _no_marker for name in ("start", "stop", "init")},
    }
    if cuda.is_available():
        is_rocm = cuda._of(0).is_rocm
        replacements[torch.version, "cuda"] = None if is_rocm else torch.version.cuda or _CUDA_VERSION
        replacements[torch.version, "hip"] = (torch.version.hip or _HIP_VERSION) if is_rocm else None
    return Patches(replacements)


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
    answers: object, package: ModuleType, loaded: Mapping[str, ModuleType], private: Sequence[str] = ()
) -> dict[tuple[Any, str], Callable[..., Any]]:
    """Return `(owner, name) -> answer` for every name of the package that `answers` can answer.

    Owners are the package and those of its submodules that define or import the very same object: a
    function of the same name may ask something else there (`torch.cuda.nccl.is_available`).
    """
    names = {name for name in dir(answers) if name in private or not name.startswith("_")}
    originals = {name: original_of(package, name) for name in names & vars(package).keys()}
    answered = {name: getattr(answers, name) for name in originals}
    prefix = package.__name__ + "."
    return {
        (owner, name): answered[name]
        for owner in (package, *(module for name, module in loaded.items() if name.startswith(prefix)))
        for name in originals.keys() & vars(owner).keys()
        if original_of(owner, name) is originals[name]
    }
