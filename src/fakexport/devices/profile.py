"""Device profiles: what a real accelerator answers about itself, read from `profiles.toml`."""

from __future__ import annotations

import difflib
import functools
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields
from importlib import resources
from types import MappingProxyType
from typing import Any

from fakexport.error import InvalidValue

_MOST_TEXT = 1000
PEAK_DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")
"""The keys that `DeviceProfile.peak_flops` may have; tf32 is float32 input at reduced precision."""


@dataclass(frozen=True)
class DeviceProfile:
    """The published properties of one accelerator model, or of the host.

    A profile answers for a device that is not there. None means that no one publishes the value, or that
    the device has no such thing; a `cuda` profile has every field but `gcn_arch_name`.

    Args:
        name: Name of the model in fakexport, `H100-80GB`.
        device_type: torch's device type: `cpu`, `cuda`, `xpu` or `mps`. ROCm accelerators are `cuda`.
        vendor_name: What the driver prints, `NVIDIA H100 80GB HBM3`.
        aliases: Other names that mean this model.
        capability: CUDA compute capability (major, minor). None outside `cuda`.
        memory_bytes: Total memory as the driver reports it where that is known, else as marketed.
            None for the host, whose size is not assumed.
        multiprocessor_count: Streaming multiprocessors, compute units, Xe-cores or GPU cores.
        shared_memory_per_block_bytes: Shared memory of a thread block without opt-in.
        shared_memory_per_block_optin_bytes: The same with opt-in.
        shared_memory_per_multiprocessor_bytes: Shared memory of a multiprocessor.
        registers_per_multiprocessor: 32-bit registers of a multiprocessor.
        max_threads_per_multiprocessor: Resident threads of a multiprocessor.
        warp_size: Threads that run in lockstep.
        l2_cache_bytes: L2 cache as the driver reports it.
        peak_flops: Dense FLOP/s (OP/s for int8) by dtype of `PEAK_DTYPES`; a missing one has no unit.
        memory_bandwidth_bytes_per_s: Bytes per second between the device and its own memory.
        link_bandwidth_bytes_per_s: Bytes per second to its peers, all links and both directions added.
        gcn_arch_name: AMD's architecture name with its features, `gfx942:sramecc+:xnack-`.
        sources: Field name -> address and wording of the public source. `peak_flops.float64` is the source
            of that one rate where it differs from that of the others.
    """

    name: str
    device_type: str
    vendor_name: str
    aliases: tuple[str, ...] = ()
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    multiprocessor_count: int | None = None
    shared_memory_per_block_bytes: int | None = None
    shared_memory_per_block_optin_bytes: int | None = None
    shared_memory_per_multiprocessor_bytes: int | None = None
    registers_per_multiprocessor: int | None = None
    max_threads_per_multiprocessor: int | None = None
    warp_size: int | None = None
    l2_cache_bytes: int | None = None
    peak_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    memory_bandwidth_bytes_per_s: int | None = None
    link_bandwidth_bytes_per_s: int | None = None
    gcn_arch_name: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)


_ACCELERATOR = frozenset(
    {"memory_bytes", "multiprocessor_count", "peak_flops", "memory_bandwidth_bytes_per_s"}
)
FIELDS = {f.name: f for f in fields(DeviceProfile) if f.name != "name"}
_REQUIRED: Mapping[str, frozenset[str]] = {
    "cpu": frozenset(),
    "cuda": frozenset(FIELDS) - {"aliases", "gcn_arch_name"},
    "xpu": _ACCELERATOR,
    "mps": _ACCELERATOR,
}
_UNSOURCED = frozenset({"aliases", "device_type", "sources"})


known_profiles: ContextVar[Mapping[str, DeviceProfile]] = ContextVar(
    "fakexport_profiles", default=MappingProxyType({})
)
"""The profiles that `device_profiles` adds to the shipped ones, in this thread or task."""


def load_profiles() -> Mapping[str, DeviceProfile]:
    """Return every profile that is known, by name.

    Returns:
        A read-only mapping: the profiles that fakexport ships, in the order of the data file, then those of
        the `device_profiles` blocks around.
    Raises:
        ValueError: The data file is not what `read_profiles` accepts.
    """
    added = known_profiles.get()
    return MappingProxyType({**_shipped_profiles(), **added}) if added else _shipped_profiles()


@functools.cache
def default_profiles() -> Mapping[str, DeviceProfile]:
    """Return the profile that each bare device type stands for: `cuda` -> H100-80GB."""
    return MappingProxyType(_shipped()[1])


def profile_named(name: str) -> DeviceProfile:
    """Return the profile that a name, an alias or a bare device type means, in any case.

    Raises:
        ValueError: No profile has this name. One line, with the nearest names.

    Example:
        >>> profile_named("h100").capability
        (9, 0)
    """
    spellings = _spellings()
    known = spellings.get(name.casefold())
    if known is None:
        near = _nearest(name, spellings)
        meant = f"did you mean {', '.join(near)}? " if near else ""
        raise InvalidValue(f"unknown device {name!r}: {meant}`fakexport devices` lists them all")
    return known[1]


def read_profiles(toml: str) -> tuple[dict[str, DeviceProfile], dict[str, DeviceProfile]]:
    """Read and check a profile file.

    Args:
        toml: Text in the format that the head of `profiles.toml` describes.
    Returns:
        The profiles by name, and the profile of each bare device type.
    Raises:
        ValueError: Not TOML; an unknown or missing field; a value of the wrong kind; a value without a
            source or a source without a value; two profiles with one name; a default that is not a profile
            of its type.
    """
    tables = tomllib.loads(toml)
    defaults = tables.pop("defaults", {})
    profiles = {name: _profile(name, table) for name, table in tables.items()}
    owners = {device_type: defaults.get(device_type) for device_type in _REQUIRED}
    for profile in profiles.values():
        for spelling in (profile.name, *profile.aliases):
            if owners.setdefault(spelling.casefold(), profile.name) != profile.name:
                raise InvalidValue(f"profiles: [{profile.name}]: the name {spelling!r} is taken")
    for device_type, name in defaults.items():
        if name not in profiles or profiles[name].device_type != device_type:
            raise InvalidValue(f"profiles: default {device_type!r} = {name!r} is not a {device_type} profile")
    return profiles, {device_type: profiles[name] for device_type, name in defaults.items()}


@functools.cache
def _shipped() -> tuple[dict[str, DeviceProfile], dict[str, DeviceProfile]]:
    file = resources.files("fakexport.devices") / "profiles.toml"
    return read_profiles(file.read_text(encoding="utf-8"))


def _spellings() -> Mapping[str, tuple[str, DeviceProfile]]:
    """Return case-folded spelling -> the spelling as written, and the profile that it means."""
    added = known_profiles.get()
    return {**_shipped_spellings(), **_spelled(added.values())} if added else _shipped_spellings()


@functools.cache
def _shipped_profiles() -> Mapping[str, DeviceProfile]:
    return MappingProxyType(_shipped()[0])


@functools.cache
def _shipped_spellings() -> Mapping[str, tuple[str, DeviceProfile]]:
    bare = {kind: (kind, profile) for kind, profile in default_profiles().items()}
    return {**bare, **_spelled(_shipped()[0].values())}


def _spelled(profiles: Iterable[DeviceProfile]) -> dict[str, tuple[str, DeviceProfile]]:
    return {spelling.casefold(): (spelling, p) for p in profiles for spelling in (p.name, *p.aliases)}


def _nearest(name: str, spellings: Mapping[str, tuple[str, DeviceProfile]]) -> list[str]:
    """Return the spellings closest to a name, best first and one per profile."""
    found: dict[str, str] = {}
    for match in difflib.get_close_matches(name.casefold(), spellings, n=3, cutoff=0.5):
        spelling, profile = spellings[match]
        found.setdefault(profile.name, spelling)
    return list(found.values())


def _profile(name: str, table: Any) -> DeviceProfile:
    if not isinstance(table, dict):
        raise InvalidValue(f"profiles: {name!r} is not a table")
    faults = list(field_faults(table)) or list(_source_faults(table))
    if faults:
        raise InvalidValue(f"profiles: [{name}]: {'; '.join(faults)}")
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
    return DeviceProfile(name=name, **values)


def field_faults(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the fields of one profile."""
    required = _REQUIRED.get(str(table.get("device_type")))
    if required is None:
        yield f"device_type must be one of {', '.join(_REQUIRED)}"
        return
    always = {key for key, f in FIELDS.items() if f.default is MISSING and f.default_factory is MISSING}
    for key in sorted((always | required) - set(table)):
        yield f"missing field {key!r}"
    for key, value in table.items():
        if key not in FIELDS:
            yield f"unknown field {key!r}"
        elif not is_acceptable(key, value):
            yield f"field {key!r} cannot be {value!r}"


def is_acceptable(key: str, value: Any) -> bool:
    """Return whether a field of a profile can have a value, from a file that anyone may have written."""
    match key:
        case "device_type" | "vendor_name" | "gcn_arch_name":
            return _is_text(value)
        case "aliases":
            return isinstance(value, list) and len(value) <= 20 and all(map(_is_text, value))
        case "capability":
            return (
                isinstance(value, list)
                and len(value) == 2
                and all(type(part) is int and 0 <= part < 100 for part in value)
            )
        case "peak_flops":
            return isinstance(value, dict) and all(
                dtype in PEAK_DTYPES
                and type(rate) in (int, float)
                and 0 < rate < 1e30
                and math.isfinite(rate)
                for dtype, rate in value.items()
            )
        case "sources":
            return isinstance(value, dict) and all(
                field.partition(".")[0] in FIELDS and _is_text(text) for field, text in value.items()
            )
        case _:
            return type(value) is int and 0 < value < 2**63


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= _MOST_TEXT


def _source_faults(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values without a source and the sources without a value; the fields are in order."""
    sources = table.get("sources", {})
    for key in table:
        if key not in _UNSOURCED and key not in sources:
            yield f"field {key!r} has no source"
    rates = {f"peak_flops.{dtype}" for dtype in table.get("peak_flops", {})}
    for key, text in sources.items():
        if key not in rates and key not in set(table) - {"sources"}:
            yield f"source {key!r} has no value"
        if not text.startswith("https://"):
            yield f"source {key!r} has no URL"
