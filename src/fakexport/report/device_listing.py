"""Render device profiles as text: a table of all profiles, or one profile with its sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

from fakexport.emulation.devices import DeviceProfile
from fakexport.report.quantity import bytes_text, rate_text
from fakexport.report.table import wide_layout

_HEAD = ("name", "aliases", "type", "capability", "memory", "SMs", "bf16 peak", "bandwidth")
_RIGHT = (4, 5, 6, 7)
_UNSHOWN = frozenset({"name", "aliases", "sources", "peak_flops"})
_NONE = "-"


def render_devices(profiles: Iterable[DeviceProfile], *, width: int = 100) -> str:
    """Return one line per profile, in the given order."""
    return "\n".join(wide_layout([_HEAD, *map(_row, profiles)], width=width, right=_RIGHT)) + "\n"


def render_device(profile: DeviceProfile) -> str:
    """Return every known value of a profile, each followed by a line with its source.

    The names of the values include units, and numbers are not rounded. Long sources are not wrapped.
    """
    aliases = f" (also {', '.join(profile.aliases)})" if profile.aliases else ""
    lines = [f"{profile.name}{aliases}"]
    for name, value, source in _values(profile):
        lines.append(f"  {name} = {value}")
        if source is not None:
            lines.append(f"      {source}")
    return "\n".join(lines) + "\n"


def _row(profile: DeviceProfile) -> tuple[str, ...]:
    bf16, bandwidth = profile.peak_flops.get("bfloat16"), profile.memory_bandwidth_bytes_per_s
    return (
        profile.name,
        ", ".join(profile.aliases) or _NONE,
        profile.device_type,
        _capability(profile) if profile.capability else _NONE,
        _NONE if profile.memory_bytes is None else bytes_text(profile.memory_bytes),
        _NONE if profile.multiprocessor_count is None else str(profile.multiprocessor_count),
        _NONE if bf16 is None else rate_text(bf16, "FLOP/s"),
        _NONE if bandwidth is None else rate_text(bandwidth, "B/s"),
    )


def _values(profile: DeviceProfile) -> Iterator[tuple[str, str, str | None]]:
    """Yield the name, text and source of every known value. A source of several rates is yielded once."""
    for field in fields(profile):
        value = getattr(profile, field.name)
        if field.name == "capability" and value:
            value = _capability(profile)
        if field.name not in _UNSHOWN and value is not None:
            text = f"{value:,}" if isinstance(value, int) else str(value)
            yield field.name, text, profile.sources.get(field.name)
    named: set[str | None] = set()
    for dtype, rate in profile.peak_flops.items():
        key, unit = f"peak_flops.{dtype}", "OP/s" if dtype == "int8" else "FLOP/s"
        source = profile.sources.get(key, profile.sources.get("peak_flops"))
        yield key, rate_text(rate, unit), None if source in named else source
        named.add(source)


def _capability(profile: DeviceProfile) -> str:
    return ".".join(map(str, profile.capability or ()))
