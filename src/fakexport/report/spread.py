"""Repeated measurements: the middle, and how far they spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fakexport.report.quantity import plural


@dataclass(frozen=True)
class Spread:
    """What a number of measurements come to, in their unit.

    Args:
        median: Half of them are less.
        lower, upper: The quartiles: half of them are between. One odd measurement moves none of the three.
        count: How many there are.

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
    """Of times in seconds: `1.24 ms (1.20 to 1.31 ms, 20 calls)`."""
    calls = plural(latency_s.count, "call")
    return f"{duration_text(latency_s.median)} ({range_text(latency_s)}, {calls})"


def range_text(times_s: Spread) -> str:
    """Return the quartiles of times in seconds: `1.20 to 1.31 ms`."""
    lower, upper = duration_text(times_s.lower), duration_text(times_s.upper)
    number, unit = lower.split()
    return f"{number if upper.endswith(f' {unit}') else lower} to {upper}"


def duration_text(duration_s: float) -> str:
    """Return a time with three digits that count: `85.1 us`, `1.24 ms`, `12.0 s`."""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if (scaled := duration_s * scale) < 999.5:
            return f"{_three_digits(scaled)} {unit}"
    return f"{_three_digits(duration_s)} s"


def _three_digits(number: float) -> str:
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}"
