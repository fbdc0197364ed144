"""Numbers as people read them: sizes, counts, times, and rows of devices."""

from __future__ import annotations

import re
from collections.abc import Collection

_BYTE_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_ELEMENT_UNITS = ("K", "M", "B", "T")
_RATE_PREFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_LONGEST_EXACT_COUNT = 9_999
_INDEXED = re.compile(r"(.+):([0-9]+)")


def bytes_text(size: int) -> str:
    """Return a size in bytes with a binary unit, as memory is sold: `512 B`, `94.5 GiB`."""
    return f"{size} B" if size < 1024 else " ".join(_scaled(size, 1024, _BYTE_UNITS))


def elements_text(count: int) -> str:
    """Return a number of parameters as models are named: `1,340`, `12.3K`, `405.9B`."""
    return f"{count:,}" if count <= _LONGEST_EXACT_COUNT else "".join(_scaled(count, 1000, _ELEMENT_UNITS))


def rate_text(rate: float, unit: str) -> str:
    """Return a rate with a decimal prefix, as vendors publish it: `989.4 TFLOP/s`, `3.35 TB/s`.

    Args:
        rate: Per second, in `unit`.
        unit: `FLOP/s`, `B/s`.
    """
    for prefix, size in reversed(_RATE_PREFIXES.items()):
        if rate >= size:
            return f"{rate / size:.4g} {prefix}{unit}"
    return f"{rate:.4g} {unit}"


def seconds_text(duration_s: float) -> str:
    """Return a duration in seconds: `0.04 s`, `35.3 s`, `125 s`."""
    digits = 2 if duration_s < 1 else 1 if duration_s < 100 else 0
    return f"{duration_s:.{digits}f} s"


def plural(count: int, noun: str) -> str:
    """Return `1 error`, `2 errors`, `1,200 nodes`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def device_names(names: Collection[str]) -> str:
    """Return device names with rows of them folded: `cpu, cuda:0..7`, the indices in order."""
    rows: list[tuple[str, int, int]] = []
    plain = sorted({name for name in names if not _INDEXED.fullmatch(name)})
    for device_type, index in sorted({_parts(name) for name in names if _INDEXED.fullmatch(name)}):
        if rows and rows[-1][0] == device_type and rows[-1][2] + 1 == index:
            rows[-1] = (device_type, rows[-1][1], index)
        else:
            rows.append((device_type, index, index))
    folded = (f"{kind}:{first}" + (f"..{last}" if last > first else "") for kind, first, last in rows)
    return ", ".join([*plain, *folded])


def _parts(name: str) -> tuple[str, int]:
    device_type, _, index = name.rpartition(":")
    return device_type, int(index)


def _scaled(value: float, base: int, units: tuple[str, ...]) -> tuple[str, str]:
    """Return the value in the unit in which it has at most `base` of them after rounding, and that unit."""
    scaled = value / base
    for unit in units[:-1]:
        if round(scaled, 1) < base:
            return f"{scaled:,.1f}", unit
        scaled /= base
    return f"{scaled:,.1f}", units[-1]
