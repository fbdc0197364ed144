"""Current and peak host memory of this process."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """Return the peak resident memory.

    On Linux, this reads `VmHWM`, which starts at zero; `ru_maxrss` starts at the parent process's value.
    """
    if _STATUS.exists():
        return _kib("VmHWM") * 1024
    try:
        import resource
    except ImportError:
        return _windows_bytes()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """Return the current resident memory; on systems that do not report it (macOS, Windows), the peak."""
    return _kib("VmRSS") * 1024 if _STATUS.exists() else peak_bytes()


def _kib(name: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


class _Counters(ctypes.Structure):
    """`PROCESS_MEMORY_COUNTERS` of psapi.h."""

    _fields_ = (
        ("cb", ctypes.c_uint32),
        ("PageFaultCount", ctypes.c_uint32),
        ("PeakWorkingSetSize", ctypes.c_size_t),
        ("WorkingSetSize", ctypes.c_size_t),
        ("QuotaPeakPagedPoolUsage", ctypes.c_size_t),
        ("QuotaPagedPoolUsage", ctypes.c_size_t),
        ("QuotaPeakNonPagedPoolUsage", ctypes.c_size_t),
        ("QuotaNonPagedPoolUsage", ctypes.c_size_t),
        ("PagefileUsage", ctypes.c_size_t),
        ("PeakPagefileUsage", ctypes.c_size_t),
    )


def _windows_bytes() -> int:
    counters = _Counters(cb=ctypes.sizeof(_Counters))
    kernel = ctypes.CDLL("kernel32")
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.cb)
    return int(counters.PeakWorkingSetSize)
