"""Format numbers for people: sizes, counts, times and their spread, and lists of devices."""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

Distance = Annotated[float, "inf"]
"""Difference between two values; infinite if they cannot be compared. JSON represents infinity as "inf"."""

_BYTE_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_ELEMENT_UNITS = ("K", "M", "B", "T")
_RATE_PREFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_LONGEST_EXACT_COUNT = 9_999
_INDEXED = re.compile(r"(.+):([0-9]+)")


def bytes_text(size: int) -> str:
    """Return a size in bytes with a binary unit: `512 B`, `94.5 GiB`."""
    return f"{size} B" if size < 1024 else " ".join(_scaled(size, 1024, _BYTE_UNITS))


def elements_text(count: int) -> str:
    """Return a number of parameters with the suffixes of model names: `1,340`, `12.3K`, `405.9B`."""
    return f"{count:,}" if count <= _LONGEST_EXACT_COUNT else "".join(_scaled(count, 1000, _ELEMENT_UNITS))


def rate_text(rate: float, unit: str) -> str:
    """Return a rate with a decimal prefix, as in vendors' data sheets: `989.4 TFLOP/s`, `3.35 TB/s`."""
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
    """Return device names with consecutive indices folded: `cpu, cuda:0..7`."""
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
    """Return the value in the first unit in which it rounds to less than `base`, and that unit."""
    scaled = value / base
    for unit in units[:-1]:
        if round(scaled, 1) < base:
            return f"{scaled:,.1f}", unit
        scaled /= base
    return f"{scaled:,.1f}", units[-1]


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of measurements, in the unit of the measurements.

    Args:
        median: The median.
        lower: The first quartile.
        upper: The third quartile. A single outlier hardly affects the median and the quartiles.
        count: Number of measurements.

    Example:
        >>> Spread.of([1.0, 3.0, 2.0])
        Spread(median=2.0, lower=1.5, upper=2.5, count=3)
    """

    median: float
    lower: float
    upper: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of one or more measurements."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, lower, upper, len(values))


def latency_text(latency_s: Spread) -> str:
    """Format times given in seconds: `1.24 ms (1.20 to 1.31 ms, 20 calls)`."""
    calls = plural(latency_s.count, "call")
    return f"{duration_text(latency_s.median)} ({range_text(latency_s)}, {calls})"


def range_text(times_s: Spread) -> str:
    """Return the quartiles of times in seconds: `1.20 to 1.31 ms`."""
    lower, upper = duration_text(times_s.lower), duration_text(times_s.upper)
    number, unit = lower.split()
    return f"{number if upper.endswith(f' {unit}') else lower} to {upper}"


def duration_text(duration_s: float) -> str:
    """Return a time with three significant digits: `85.1 us`, `1.24 ms`, `12.0 s`."""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if (scaled := duration_s * scale) < 999.5:
            return f"{_three_digits(scaled)} {unit}"
    return f"{_three_digits(duration_s)} s"


def _three_digits(number: float) -> str:
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}"


def device_sizes(sizes: Mapping[str, int]) -> str:
    """Return every size with its devices: `cpu 480 B, cuda:0 93.0 GiB, cuda:1..6 95.0 GiB`."""
    return ", ".join(f"{device_names(names)} {text}" for names, text in equal_rows(sizes))


def equal_rows(sizes: Mapping[str, int]) -> list[tuple[list[str], str]]:
    """Group neighboring devices with the same formatted size. Return pairs of device names and that size."""
    ordered = sorted(sizes, key=_natural)
    return [(list(row), text) for text, row in groupby(ordered, key=lambda name: bytes_text(sizes[name]))]


def _natural(name: str) -> tuple[str, int]:
    device_type, _, index = name.partition(":")
    return device_type, int(index) if index.isdecimal() else -1
