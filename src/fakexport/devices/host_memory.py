"""How much of the host's memory this process holds and held."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

__all__ = ["peak_bytes", "resident_bytes"]

_STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """The most resident memory so far.

    Linux's `ru_maxrss` begins with that of the process which started this one, `VmHWM` with nothing.
    """
    if _STATUS.exists():
        return _kib("VmHWM") * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """The resident memory now; where the system does not tell, the most so far."""
    return _kib("VmRSS") * 1024 if _STATUS.exists() else peak_bytes()


def _kib(name: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
