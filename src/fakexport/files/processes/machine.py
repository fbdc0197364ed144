"""Describe the machine that this process runs on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_GIB = 2**30


def processor_text() -> str:
    """Return the number of processors and their name, such as `2 x AMD EPYC 9R14`."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor() or platform.machine()


def machine_text() -> str:
    """Return system, processor and memory, such as `Linux x86_64, 2 x AMD EPYC 9R14, 31 GiB`."""
    parts = [f"{platform.system()} {platform.machine()}", processor_text()]
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        parts.append(f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / _GIB:.0f} GiB")
    return ", ".join(parts)
