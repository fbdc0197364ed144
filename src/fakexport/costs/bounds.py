"""How fast a device can be at most: times that no execution of a program stays below.

Each bound holds by itself, so that the greatest one holds: arithmetic, memory and links may work at the same
time, and so may units for different dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from fakexport.costs.costs_at import DeviceCost
from fakexport.devices import DeviceProfile

Limit = Literal["compute", "memory", "link"]

_MIB = 2**20
# AMD's GPUs have a cache behind the L2, which their profiles do not tell: 256 MiB in the MI300 series.
_INFINITY_CACHE_BYTES = 256 * _MIB
# More than any GPU has.
_UNKNOWN_CACHE_BYTES = 512 * _MIB


@dataclass(frozen=True)
class Bound:
    """A time that one call takes on a device at least.

    Args:
        limit: What takes the time.
        seconds: No call is faster.
        amount: Operations or bytes.
        per_second: The profile's rate.
        dtype: Dtype of the factors; "" for bytes.
    """

    limit: Limit
    seconds: float
    amount: int
    per_second: float
    dtype: str = ""


def bounds(cost: DeviceCost, profile: DeviceProfile, *, received_bytes: int) -> tuple[Bound, ...]:
    """Return what bounds the time of a device, as far as its profile has the rates.

    Args:
        cost: What it does in one call.
        profile: The device. The host's has no rates.
        received_bytes: What comes from other devices of the program, without the host.
    """
    return tuple(_bounds(cost, profile, received_bytes))


def _bounds(cost: DeviceCost, profile: DeviceProfile, received_bytes: int) -> Iterator[Bound]:
    compute = [
        Bound("compute", flops / rate, flops, rate, dtype)
        for dtype, flops in cost.least_flops.items()
        if flops and (rate := fastest_rate(dtype, profile.peak_flops))
    ]
    yield from sorted(compute, key=lambda bound: -bound.seconds)[:1]
    bandwidth = profile.memory_bandwidth_bytes_per_s
    if bandwidth:
        cache = _cache_bytes(profile)
        moved = max(0, cost.read_bytes - cache) + max(0, cost.written_bytes - cache)
        yield Bound("memory", moved / bandwidth, moved, bandwidth)
    sent = sum(size for device, size in cost.sent_bytes.items() if device != "cpu")
    received = received_bytes + cost.exchanged_bytes
    if profile.link_bandwidth_bytes_per_s and (busier := max(sent, received)):
        # The profile adds both directions.
        rate = profile.link_bandwidth_bytes_per_s / 2
        yield Bound("link", busier / rate, busier, rate)


def fastest_rate(dtype: str, rates: Mapping[str, float]) -> float | None:
    """Return the greatest rate at which a device may compute with a dtype, whatever the settings of torch.

    Returns:
        None if the profile has no rates at all. float32 may be computed as TF32; float16 may be added up in
        float16, at the rate of int8 by half; a dtype without a unit of its own is converted.
    """
    if not rates:
        return None
    fallback = max(rates.values())
    int8 = rates.get("int8", 0.0)
    if dtype in ("float64", "complex128"):
        return rates.get("float64") or fallback
    if dtype in ("float32", "complex64"):
        return max(rates.get("float32", 0.0), rates.get("tf32", 0.0)) or fallback
    if dtype == "float16":
        return max(rates.get("float16", 0.0), int8 / 2) or fallback
    if dtype == "bfloat16":
        return rates.get("bfloat16") or fallback
    if dtype.startswith("float8"):
        return max(rates["float8"], int8) if "float8" in rates else fallback
    # Profiles have no rate for 4 bits, at which the newest devices are twice as fast as at 8.
    return 2 * fallback if dtype.startswith("float4") else fallback


def _cache_bytes(profile: DeviceProfile) -> int:
    """Return how much of what a call reads or writes may stay on the chip from one call to the next."""
    if profile.l2_cache_bytes is None:
        return _UNKNOWN_CACHE_BYTES
    return profile.l2_cache_bytes + (_INFINITY_CACHE_BYTES if profile.gcn_arch_name else 0)
