"""Emulate the devices of a topology for fake tensors."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import threading
import warnings
from contextlib import ExitStack
from types import TracebackType

import torch

from fakexport._torch.context_stack import ContextStack
from fakexport._torch.emulation.absent_devices import ALWAYS_THERE, AbsentDevice
from fakexport._torch.emulation.attention_backend import AttentionDevice
from fakexport._torch.emulation.device_guard import VirtualGuards, missing_guards, real_device_count
from fakexport._torch.emulation.device_queries import DeviceAnswers
from fakexport._torch.emulation.fake_tensors import virtual_fakes
from fakexport._torch.emulation.query_patches import query_patches
from fakexport._torch.emulation.virtual_accelerator import virtual_accelerator, virtual_backward
from fakexport._torch.emulation.wheel_answers import questions_asked_again
from fakexport._torch.kernels.device_operators import fake_device_operators, fused_optimizers
from fakexport._torch.kernels.virtual_attention import virtual_attention
from fakexport._torch.kernels.virtual_operators import virtual_operators
from fakexport._version import NEWEST_TORCH, OLDEST_TORCH, __version__
from fakexport.error import FakexportError

from .profile import DeviceProfile
from .topology import Topology

_VIRTUAL_TYPES = ("cuda", "xpu", "mps")

_emulated: ContextStack[Topology | None] = ContextStack("fakexport topology")
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # Lock order: acquired before the lock of `Patches`.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class EmulationUnavailableError(FakexportError, RuntimeError):
    """Devices cannot be emulated on this platform. The message names alternatives."""


class emulate:  # noqa: N801 - used as a verb: `with emulate("H100")`
    """Emulate the devices of a topology for fake tensors, with the properties of their profiles.

    This works with a CPU-only wheel of torch, with a CUDA wheel but no driver, and on a machine with a
    different real device. The context can be nested, re-entered, and exited by an exception. On exit, all
    patched functions of torch are restored. Creating a real tensor on a virtual device fails as it does
    without emulation. If an operator on fake tensors uses a device outside of the topology, it raises an
    `AcceleratorError` that is also an `AssertionError`, as on the real machine. Backward passes on fake
    tensors work on Linux (x86-64, Arm64); on macOS they raise the same error as without fakexport.

    The devices exist only in this thread or asyncio task. Blocks in different threads or tasks may use
    different topologies, overlap, and exit in any order. To use the devices in a thread that is started
    within the block, run the thread in a copy of the context: `Thread(target=contextvars.copy_context().run,
    args=(function,))`, or use `asyncio.to_thread`.

    Args:
        topology: `"H100"`, `"8xH100"`, `"cpu+2xA100-40GB"`, ..., or a `Topology`.

    Returns:
        On entry, the `Topology`.

    Raises:
        ValueError: the topology contains an unknown device.
        EmulationUnavailableError: on entry, see `check_emulation`.

    Example:
        >>> import torch
        >>> from torch._subclasses.fake_tensor import FakeTensorMode
        >>> with emulate("8xH100"), FakeTensorMode():
        ...     torch.cuda.get_device_capability(7), torch.nn.Linear(2, 2, device="cuda:7").weight.device
        ((9, 0), device(type='cuda', index=7))
    """

    def __init__(self, topology: str | Topology) -> None:
        self.topology = Topology.parse(topology) if isinstance(topology, str) else topology
        self._stacks: list[tuple[object, ExitStack]] = []

    def __enter__(self) -> Topology:
        warn_if_untested()
        check_emulation(self.topology)
        with _lock, ExitStack() as stack:
            stack.enter_context(VirtualGuards(_types_to_guard(self.topology)))
            stack.enter_context(questions_asked_again())
            stack.enter_context(query_patches(_answers(self.topology), self.topology.present))
            stack.enter_context(virtual_fakes())
            stack.enter_context(virtual_operators(_refuse_absent))
            stack.enter_context(_kernels)
            if self.topology.accelerators:
                stack.enter_context(virtual_accelerator(self.topology.accelerators[0].type))
                stack.enter_context(virtual_backward(self.topology.accelerators[0].type))
            stack.callback(_emulated.close, _emulated.push(self.topology))
            self._stacks.append((_here(), stack.pop_all()))
        return self.topology

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _lock:
            # Another thread may have entered the same object after this one.
            own = [index for index, (where, _) in enumerate(self._stacks) if where == _here()]
            self._stacks.pop(own[-1] if own else -1)[1].close()


def check_emulation(topology: Topology) -> None:
    """Raise an error if the topology has accelerators that this machine lacks and cannot emulate.

    Raises:
        EmulationUnavailableError: The message is one line with the reason. docs/support.md lists the
            platforms.
    """
    if (reason := missing_guards()) is None:
        return
    if any(len(topology.devices_of(kind)) > real_device_count(kind) for kind in _VIRTUAL_TYPES):
        raise EmulationUnavailableError(
            f"{topology.canonical} cannot be emulated on this platform: {reason}. The target cpu works; for "
            "accelerators, run fakexport on Linux or macOS, in WSL or in a container"
        )


class _Kernels:
    """Context manager: register the kernels that torch lacks for virtual devices.

    Nested and overlapping blocks share one registration, because torch warns if a kernel is registered twice.
    A kernel uses the topology of the context in which it is called.
    """

    def __init__(self) -> None:
        self._uses = 0
        self._registered = ExitStack()

    def __enter__(self) -> None:
        if self._uses == 0:
            self._registered.enter_context(virtual_attention(_attention_device))
            self._registered.enter_context(fused_optimizers())
            self._registered.enter_context(fake_device_operators())
        self._uses += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._uses -= 1
        if self._uses == 0:
            self._registered.close()


_kernels = _Kernels()


def _here() -> tuple[int, int]:
    """Return the current thread and asyncio task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), id(task)


def _types_to_guard(topology: Topology) -> list[str]:
    """Return the device types that need a no-op device guard because this machine has too few such devices.

    If the machine has enough devices of a type, the real guard is kept, so that real work in other threads
    is not affected.
    """
    real = {kind: real_device_count(kind) for kind in _VIRTUAL_TYPES}
    if missing_guards() is not None:
        return []
    return [kind for kind in _VIRTUAL_TYPES if not real[kind] or len(topology.devices_of(kind)) > real[kind]]


def emulated_topology() -> Topology | None:
    """Return the topology of the innermost `emulate` block of this thread or task, or None."""
    return _emulated.top(None)


def _refuse_absent(device: torch.device) -> None:
    """If the innermost topology lacks the device, raise the error that a real machine raises."""
    topology = emulated_topology()
    if device.type in ALWAYS_THERE or topology is None or topology.has_device(str(device)):
        return
    raise AbsentDevice.named(device, topology.present, instead=topology.default_device)


def _attention_device(device: torch.device) -> AttentionDevice | None:
    topology = emulated_topology()
    return None if topology is None else attention_device(device, topology)


def attention_device(device: torch.device, topology: Topology) -> AttentionDevice | None:
    """Return what attention depends on, or None if the topology lacks the device."""
    if not topology.has_device(str(device)):
        return None
    profile = topology.device(str(device)).profile
    return AttentionDevice(device.type, profile.capability or (0, 0), profile.gcn_arch_name is not None)


def _answers(topology: Topology) -> dict[str, list[DeviceAnswers]]:
    return {
        kind: [_answers_of(device.profile) for device in topology.devices_of(kind)]
        for kind in sorted(_VIRTUAL_TYPES)
    }


def _answers_of(profile: DeviceProfile) -> DeviceAnswers:
    is_rocm = profile.gcn_arch_name is not None
    return DeviceAnswers(
        name=profile.vendor_name,
        capability=profile.capability,
        memory_bytes=profile.memory_bytes or 0,
        architecture=(profile.gcn_arch_name or "").partition(":")[0],
        is_rocm=is_rocm,
        has_native_bfloat16="bfloat16" in profile.peak_flops,
        properties=_properties(profile),
    )


# Attribute of torch's device properties -> field of the profile. Unpublished values are omitted, so that
# reading them raises an AttributeError instead of returning a guess.
_PROPERTY_FIELDS = {
    "multi_processor_count": "multiprocessor_count",
    "shared_memory_per_block": "shared_memory_per_block_bytes",
    "shared_memory_per_block_optin": "shared_memory_per_block_optin_bytes",
    "shared_memory_per_multiprocessor": "shared_memory_per_multiprocessor_bytes",
    "regs_per_multiprocessor": "registers_per_multiprocessor",
    "max_threads_per_multi_processor": "max_threads_per_multiprocessor",
    "warp_size": "warp_size",
    "L2_cache_size": "l2_cache_bytes",
    "gcnArchName": "gcn_arch_name",
}


def _properties(profile: DeviceProfile) -> dict[str, object]:
    values = {name: getattr(profile, field) for name, field in _PROPERTY_FIELDS.items()}
    if profile.device_type == "xpu":  # torch reads this before it prints a tensor.
        values["has_fp64"] = "float64" in profile.peak_flops
    return {name: value for name, value in values.items() if value is not None}


class UntestedTorch(UserWarning):
    """This version of torch is outside the tested range."""


@functools.cache
def warn_if_untested() -> None:
    """Warn once per process if the version of torch is outside the range in `fakexport._version`."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    version = (int(found[1]), int(found[2])) if found else NEWEST_TORCH
    if not OLDEST_TORCH <= version <= NEWEST_TORCH:
        oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST_TORCH, NEWEST_TORCH))
        warnings.warn(
            f"fakexport {__version__} supports torch {oldest} to {newest}, but this is torch "
            f"{torch.__version__}: reports may not match its behavior",
            UntestedTorch,
            stacklevel=3,
        )


def exists_here(device: str | torch.device) -> bool:
    """Return whether this process can allocate data on a device; false for emulated devices."""
    wanted = torch.device(device)
    if wanted.type in ("cpu", "meta"):
        return wanted.type == "cpu"
    if emulated_topology() is not None:
        return False
    module = getattr(torch, wanted.type, None)
    return bool(module is not None and module.is_available() and (wanted.index or 0) < module.device_count())
