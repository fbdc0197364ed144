"""What a process takes on a device that no tensor of the program shows."""

from __future__ import annotations

from dataclasses import dataclass

from fakexport.devices import DeviceProfile
from fakexport.memory.allocator import AllocatorPeak
from fakexport.memory.peak import DevicePeak

_MIB = 2**20
_CHANNEL_BUFFER = 4 * _MIB

_SMALL_WORKSPACE = (4096 * 2 + 16 * 8) * 1024
_LARGE_WORKSPACE_CAPABILITIES = (9, 10, 12)
_LARGE_WORKSPACE_ARCHITECTURES = ("gfx94", "gfx95")


@dataclass(frozen=True)
class Overhead:
    """Memory of a device that the program's tensors do not account for.

    Args:
        name: What takes it: `CUDA context`.
        lower: Bytes that it takes at least.
        upper: Bytes that it takes at most, as far as is known.
        is_allocated: Whether torch's caching allocator counts it (`torch.cuda.memory_allocated`).
        source: Where the figure is from.
    """

    name: str
    lower: int
    upper: int
    is_allocated: bool
    source: str


def overheads(
    profile: DeviceProfile, *, multiplies: bool, communicates: bool = False
) -> tuple[Overhead, ...]:
    """Return what one process takes on a device besides the tensors of a program.

    Args:
        profile: The device. The host and Apple's GPUs, which share memory with it, have none.
        multiplies: Whether the program has an operator that is a matrix product or a convolution.
        communicates: Whether it has a collective.
    """
    if profile.device_type not in ("cuda", "xpu"):
        return ()
    has_workspace = multiplies and profile.device_type == "cuda"
    communication = [_communication(profile)] if communicates and profile.device_type == "cuda" else []
    return (*([_workspace(profile)] if has_workspace else []), *communication, _context(profile))


def allocator_overhead(
    peak: DevicePeak, default: AllocatorPeak, growing: AllocatorPeak, *, workspace_bytes: int
) -> Overhead:
    """Return what torch's caching allocator takes from the driver beyond what was asked for.

    The bounds are its default settings and `expandable_segments`.
    """
    asked = peak.bytes + workspace_bytes
    found = sorted(max(0, taken.reserved_bytes - asked) for taken in (default, growing))
    return Overhead("allocator", found[0], found[1], True, _ALLOCATOR_SOURCE)


def _workspace(profile: DeviceProfile) -> Overhead:
    """Return the buffer that torch gives cuBLAS once per handle and stream, from its own allocator."""
    if profile.gcn_arch_name is not None:
        is_large = profile.gcn_arch_name.startswith(_LARGE_WORKSPACE_ARCHITECTURES)
        size = (128 if is_large else 32) * _MIB
        # hipBLASLt has a workspace of its own, which is allocated when it is first chosen.
        return Overhead("hipBLAS workspace", size, size + 76 * _MIB, True, _WORKSPACE_SOURCE)
    major = profile.capability[0] if profile.capability else 0
    size = 32 * _MIB if major in _LARGE_WORKSPACE_CAPABILITIES else _SMALL_WORKSPACE
    return Overhead("cuBLAS workspace", size, size, True, _WORKSPACE_SOURCE)


def _communication(profile: DeviceProfile) -> Overhead:
    """Return the buffers of one communicator: 4 MiB for each channel and each peer of a ring or a tree."""
    name = "NCCL buffers" if profile.gcn_arch_name is None else "RCCL buffers"
    return Overhead(name, 2 * _CHANNEL_BUFFER, 256 * _CHANNEL_BUFFER, False, _COMMUNICATION_SOURCE)


def _context(profile: DeviceProfile) -> Overhead:
    name = {"cuda": "CUDA context", "xpu": "driver context"}[profile.device_type]
    name = "HIP context" if profile.gcn_arch_name is not None else name
    return Overhead(name, 300 * _MIB, 800 * _MIB, False, _CONTEXT_SOURCE)


_WORKSPACE_SOURCE = (
    "torch's aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize: 32 MiB for compute "
    "capability 9, 10 and 12, 128 MiB for gfx94 and gfx95, 32 MiB for other AMD GPUs, 8,320 KiB else; shared "
    "with cuBLASLt"
)
_ALLOCATOR_SOURCE = (
    "a replay of the program through a model of torch's caching allocator, with and without "
    "PYTORCH_ALLOC_CONF=expandable_segments:True: rounding, and what is cached and not in use"
)
_COMMUNICATION_SOURCE = (
    "NCCL's documentation: NCCL_BUFFSIZE, 4 MiB by default, for each pair of GPUs and channel; here 1 pair "
    "to send and 1 to receive, up to 32 channels of rings and trees with 8 buffers each; uncertain"
)
_CONTEXT_SOURCE = (
    "reports of torch's users since kernels are loaded when they are first used (CUDA 11.7): 300 to 426 MiB "
    "before the first kernel (pytorch#107667, #109888, unsloth-zoo#1053), more with each library that is "
    "loaded"
)
