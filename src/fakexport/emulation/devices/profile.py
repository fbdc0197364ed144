"""Device profiles: the properties that accelerators report, read from `profiles.toml`."""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType
from typing import Any

from fakexport.error import InvalidValue

PEAK_DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")
"""The keys that `DeviceProfile.peak_flops` may have. `tf32` means float32 inputs at reduced precision."""


@dataclass(frozen=True)
class DeviceProfile:
    """The published properties of one accelerator model, or of the host.

    None means that the value is not published, or that the device has no such property. A `cuda` profile has
    every field except `gcn_arch_name`.

    Args:
        name: Name of the model in fakexport, `H100-80GB`.
        device_type: torch's device type: `cpu`, `cuda`, `xpu` or `mps`. ROCm accelerators are `cuda`.
        vendor_name: Name reported by the driver, `NVIDIA H100 80GB HBM3`.
        aliases: Alternative names of this model.
        capability: CUDA compute capability (major, minor). None for types other than `cuda`.
        memory_bytes: Total memory reported by the driver. If that is not known, the marketed size. None for
            the host.
        multiprocessor_count: Streaming multiprocessors, compute units, Xe-cores or GPU cores.
        shared_memory_per_block_bytes: Maximum shared memory of a thread block without opt-in.
        shared_memory_per_block_optin_bytes: Maximum shared memory of a thread block with opt-in.
        shared_memory_per_multiprocessor_bytes: Shared memory of a multiprocessor.
        registers_per_multiprocessor: 32-bit registers of a multiprocessor.
        max_threads_per_multiprocessor: Maximum number of resident threads of a multiprocessor.
        warp_size: Threads that run in lockstep.
        l2_cache_bytes: Size of the L2 cache as reported by the driver.
        peak_flops: Dense FLOP/s (OP/s for int8) by dtype, with keys from `PEAK_DTYPES`. Unsupported dtypes
            are missing.
        memory_bandwidth_bytes_per_s: Bytes per second between the device and its own memory.
        link_bandwidth_bytes_per_s: Bytes per second to other devices, summed over all links and both
            directions.
        gcn_arch_name: AMD's architecture name with its features, `gfx942:sramecc+:xnack-`.
        sources: Field name -> URL of the public source and a quotation from it. A rate whose source differs
            from that of the other rates has a key of its own, such as `peak_flops.float64`.
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


known_profiles: ContextVar[Mapping[str, DeviceProfile]] = ContextVar(
    "fakexport_profiles", default=MappingProxyType({})
)
"""Profiles added by `device_profiles` in this thread or task."""


def load_profiles() -> Mapping[str, DeviceProfile]:
    """Return all profiles by name.

    Returns:
        A read-only mapping: the built-in profiles in the order of the data file, then those of installed
        packages and of the enclosing `device_profiles` blocks.
    """
    return MappingProxyType({**_shipped()[0], **_installed(), **known_profiles.get()})


def default_profiles() -> Mapping[str, DeviceProfile]:
    """Return the default profile of each device type: `cuda` -> H100-80GB."""
    return _shipped()[1]


def profile_named(name: str) -> DeviceProfile:
    """Return the profile with the given name, alias or device type; case is ignored.

    Raises:
        ValueError: no profile matches. The message is a single line that names the closest matches.

    Example:
        >>> profile_named("h100").capability
        (9, 0)
    """
    spellings = _spellings()
    known = spellings.get(name.casefold())
    if known is None:
        spellings = {**spellings, **_spelled(_installed().values())}
        known = spellings.get(name.casefold())
    if known is None:
        near = _nearest(name, spellings)
        meant = f"did you mean {', '.join(near)}? " if near else ""
        raise InvalidValue(f"unknown device {name!r}: {meant}`fakexport devices` lists all devices")
    return known[1]


def _installed() -> Mapping[str, DeviceProfile]:
    from .custom_profiles import installed_profiles  # It imports this module.

    return installed_profiles()


@functools.cache
def _shipped() -> tuple[Mapping[str, DeviceProfile], Mapping[str, DeviceProfile]]:
    """Return the built-in profiles by name, and the default profile of each device type.

    The file is not validated here; tests do that.
    """
    file = resources.files("fakexport.emulation.devices") / "profiles.toml"
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    defaults = tables.pop("defaults")
    profiles = {name: DeviceProfile(name=name, **field_values(table)) for name, table in tables.items()}
    bare = {device_type: profiles[name] for device_type, name in defaults.items()}
    return MappingProxyType(profiles), MappingProxyType(bare)


def field_values(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a profile from a table of a file. Lists become tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def _spellings() -> Mapping[str, tuple[str, DeviceProfile]]:
    """Return each case-folded name and alias, with its original spelling and its profile."""
    added = known_profiles.get()
    return {**_shipped_spellings(), **_spelled(added.values())} if added else _shipped_spellings()


@functools.cache
def _shipped_spellings() -> Mapping[str, tuple[str, DeviceProfile]]:
    bare = {kind: (kind, profile) for kind, profile in default_profiles().items()}
    return {**bare, **_spelled(_shipped()[0].values())}


def _spelled(profiles: Iterable[DeviceProfile]) -> dict[str, tuple[str, DeviceProfile]]:
    return {spelling.casefold(): (spelling, p) for p in profiles for spelling in (p.name, *p.aliases)}


def _nearest(name: str, spellings: Mapping[str, tuple[str, DeviceProfile]]) -> list[str]:
    """Return the closest names, best first, at most one per profile."""
    found: dict[str, str] = {}
    for match in difflib.get_close_matches(name.casefold(), spellings, n=3, cutoff=0.5):
        spelling, profile = spellings[match]
        found.setdefault(profile.name, spelling)
    return list(found.values())
