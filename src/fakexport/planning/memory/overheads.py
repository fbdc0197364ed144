"""Memory that a process uses on a device in addition to the tensors of the program."""

from __future__ import annotations

from fakexport.emulation.devices import DeviceProfile
from fakexport.planning.memory.allocator import AllocatorPeak
from fakexport.planning.memory.liveness import DevicePeak
from fakexport.report import Interval, PlannedOverhead

_MIB = 2**20
_CHANNEL_BUFFER = 4 * _MIB

_SMALL_WORKSPACE = (4096 * 2 + 16 * 8) * 1024
_LARGE_WORKSPACE_CAPABILITIES = (9, 10, 12)
_LARGE_WORKSPACE_ARCHITECTURES = ("gfx94", "gfx95")


def overheads(
    profile: DeviceProfile, *, multiplies: bool, communicates: bool = False
) -> tuple[PlannedOverhead, ...]:
    """Return the memory that one process uses on a device in addition to the tensors of a program.

    The host and Apple GPUs, which share the host's memory, have no overheads.

    Args:
        multiplies: Whether the program has a matrix product or a convolution.
        communicates: Whether the program has a collective.
    """
    if profile.device_type not in ("cuda", "xpu"):
        return ()
    has_workspace = multiplies and profile.device_type == "cuda"
    communication = [_communication(profile)] if communicates and profile.device_type == "cuda" else []
    return (*([_workspace(profile)] if has_workspace else []), *communication, _context(profile))


def allocator_overhead(
    peak: DevicePeak, default: AllocatorPeak, growing: AllocatorPeak, *, workspace_bytes: int
) -> PlannedOverhead:
    """Return what the allocator reserves beyond the requests, by default and with expandable segments."""
    asked = peak.bytes + workspace_bytes
    found = sorted(max(0, taken.reserved_bytes - asked) for taken in (default, growing))
    return PlannedOverhead("allocator", Interval(found[0], found[1]), True, _ALLOCATOR_SOURCE)


def _workspace(profile: DeviceProfile) -> PlannedOverhead:
    """Return the buffer that torch's allocator reserves for cuBLAS once per handle and stream."""
    if profile.gcn_arch_name is not None:
        is_large = profile.gcn_arch_name.startswith(_LARGE_WORKSPACE_ARCHITECTURES)
        size = (128 if is_large else 32) * _MIB
        # hipBLASLt has a separate workspace, which is allocated when the library is first chosen.
        return PlannedOverhead("hipBLAS workspace", Interval(size, size + 76 * _MIB), True, _WORKSPACE_SOURCE)
    major = profile.capability[0] if profile.capability else 0
    size = 32 * _MIB if major in _LARGE_WORKSPACE_CAPABILITIES else _SMALL_WORKSPACE
    return PlannedOverhead("cuBLAS workspace", Interval(size, size), True, _WORKSPACE_SOURCE)


def _communication(profile: DeviceProfile) -> PlannedOverhead:
    """Return the size of a communicator's buffers: 4 MiB per channel and connection to another GPU."""
    name = "NCCL buffers" if profile.gcn_arch_name is None else "RCCL buffers"
    return PlannedOverhead(
        name, Interval(2 * _CHANNEL_BUFFER, 256 * _CHANNEL_BUFFER), False, _COMMUNICATION_SOURCE
    )


def _context(profile: DeviceProfile) -> PlannedOverhead:
    name = {"cuda": "CUDA context", "xpu": "driver context"}[profile.device_type]
    name = "HIP context" if profile.gcn_arch_name is not None else name
    return PlannedOverhead(name, Interval(300 * _MIB, 800 * _MIB), False, _CONTEXT_SOURCE)


_WORKSPACE_SOURCE = (
    "torch's aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize: 32 MiB for compute "
    "capability 9, 10 and 12, 128 MiB for gfx94 and gfx95, 32 MiB for other AMD GPUs, otherwise 8,320 "
    "KiB; shared with cuBLASLt"
)
_ALLOCATOR_SOURCE = (
    "rounding and unused cached memory, from a replay of the program in a model of torch's caching "
    "allocator, with and without PYTORCH_ALLOC_CONF=expandable_segments:True"
)
_COMMUNICATION_SOURCE = (
    "an estimate from NCCL's documentation: between 2 buffers (one to send, one to receive) and 256 buffers "
    "(32 ring and tree channels with 8 buffers each), of NCCL_BUFFSIZE each (4 MiB by default)"
)
_CONTEXT_SOURCE = (
    "reports from torch users with CUDA 11.7 or later, which loads kernels on first use: 300 to 426 MiB "
    "before the first kernel (pytorch#107667, #109888, unsloth-zoo#1053), more with each loaded library: 526 "
    "MiB, and 691 MiB with cuBLAS and cuDNN, on an H200 with driver 580 and CUDA 13.0"
)
