"""Device profiles defined by users, read from untrusted files and active within a block."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib.resources import as_file
from pathlib import Path
from typing import Any

from fakexport.emulation.devices.profile import (
    PEAK_DTYPES,
    DeviceProfile,
    default_profiles,
    field_values,
    known_profiles,
    load_profiles,
    profile_named,
)
from fakexport.error import FakexportError, InvalidValue
from fakexport.files import escaped, plugin_fault, plugin_file, plugins, read_file
from fakexport.files.documents import DocumentError, parse_json, parse_toml

_MOST_BYTES = 1 << 20
_MOST_PROFILES = 1000
_MOST_TEXT = 1000
_TYPES = ("cuda", "xpu", "mps")
_FIELDS = [each.name for each in fields(DeviceProfile) if each.name != "name"]
_OPTIONAL_ON_CUDA = ("aliases", "gcn_arch_name", "sources")
_REQUIRED = (
    "vendor_name", "memory_bytes", "multiprocessor_count", "peak_flops", "memory_bandwidth_bytes_per_s"
)  # fmt: skip
# Names that a topology can contain. For example, `8xH100`, `cuda:0` and `cpu+H100` are not allowed.
_NAME = re.compile(r"(?![0-9]+[xX])[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ProfileError(FakexportError, ValueError):
    """A file of device profiles is invalid. The message is a single line."""


@contextmanager
def device_profiles(file: str | os.PathLike[str]) -> Iterator[Mapping[str, DeviceProfile]]:
    """Context manager: add the profiles of a file to the built-in ones.

    The profiles are active in this thread or asyncio task. Nested blocks add their profiles to the outer
    ones.

    Args:
        file: A `.toml` or `.json` file with one table per profile. A table has the fields of `DeviceProfile`
            (docs/devices.md). Its `base` may name an existing profile, which provides the omitted fields.
    Returns:
        On entry, the profiles of the file by name.
    Raises:
        ProfileError: a name is invalid or already used, a field is unknown or missing, or a value is invalid.
        OSError: the file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = pathlib.Path(folder.name, "devices.toml")
        >>> _ = path.write_text('[H100-96GB]\\nbase = "H100"\\nmemory_bytes = 101_468_602_368\\n')
        >>> with device_profiles(path):
        ...     Topology.parse("h100-96gb").canonical
        'H100-96GB'
        >>> folder.cleanup()
    """
    read = _read(Path(file))
    token = known_profiles.set({**known_profiles.get(), **read})
    try:
        yield read
    finally:
        known_profiles.reset(token)


def installed_profiles() -> Mapping[str, DeviceProfile]:
    """Return the profiles of installed packages, from the files of the entry points `fakexport.profiles`.

    A profile can be based on a built-in profile, or on a profile of an entry point whose name sorts before.

    Raises:
        PluginError: a file cannot be read, or a profile is invalid.
    """
    if _INSTALLED is None:
        _read_installed()
    return _INSTALLED or {}


_INSTALLED: dict[str, DeviceProfile] | None = None


def _read_installed() -> None:
    global _INSTALLED
    _INSTALLED = {}  # Reading a file looks up the profiles that it is based on.
    for entry in plugins("profiles").values():
        try:
            with as_file(plugin_file(entry, entry.attr)) as path:
                _INSTALLED |= _read(path)
        except (OSError, ProfileError) as error:
            _INSTALLED = None
            raise plugin_fault(entry, f"is invalid: {error}") from error


def _read(path: Path) -> dict[str, DeviceProfile]:
    tables = _tables(path)
    if len(tables) > _MOST_PROFILES:
        raise ProfileError(f"{path}: {len(tables)} profiles; the limit is {_MOST_PROFILES}")
    taken = {
        spelling.casefold()
        for profile in load_profiles().values()
        for spelling in (profile.name, *profile.aliases)
    } | set(default_profiles())
    found: dict[str, DeviceProfile] = {}
    for name, table in tables.items():
        try:
            profile = _profile(name, table)
            for spelling in (name, *profile.aliases):
                _check_name(spelling, taken)
        except FakexportError as error:
            shown = f"[{escaped(name[:80])}]"
            raise ProfileError(f"{path}: {shown}: {' '.join(str(error).split())}") from error
        found[name] = profile
    return found


def _tables(path: Path) -> dict[str, Any]:
    content = read_file(path, most_bytes=_MOST_BYTES)
    try:
        if path.suffix == ".json":
            tables = parse_json(content, most_bytes=_MOST_BYTES)
        elif path.suffix == ".toml":
            tables = parse_toml(content)
        else:
            raise ProfileError(f"{path}: expected a .toml or .json file")
    except DocumentError as error:
        raise ProfileError(f"{path}: {error}") from error
    if not isinstance(tables, dict):
        raise ProfileError(f"{path}: expected a table per profile, got {type(tables).__name__}")
    return tables


def _check_name(name: str, taken: set[str]) -> None:
    """Check that a topology can contain the name and that no other profile uses it. Add it to `taken`."""
    if not _NAME.fullmatch(name):
        raise InvalidValue(
            f"the name {name[:80]!r} cannot be used in a topology: use at most 64 letters, "
            "digits, `.`, `_` and `-`, and do not start with a count such as `8x`"
        )
    if name.casefold() in taken:
        raise InvalidValue(f"the name {name!r} is already used")
    taken.add(name.casefold())


def _profile(name: str, table: Any) -> DeviceProfile:
    if not isinstance(table, dict):
        raise InvalidValue(f"expected a table, got {type(table).__name__}")
    given = {key: value for key, value in table.items() if key != "base"}
    if faults := list(_faults(given)):
        raise InvalidValue("; ".join(faults))
    values = field_values(given)
    if "peak_flops" in values:
        values["peak_flops"] = {dtype: float(rate) for dtype, rate in values["peak_flops"].items()}
    if "base" not in table:
        if "device_type" not in given:
            raise InvalidValue(f"device_type must be one of {', '.join(_TYPES)}")
        is_cuda = given["device_type"] == "cuda"
        required = [key for key in _FIELDS if key not in _OPTIONAL_ON_CUDA] if is_cuda else _REQUIRED
        if missing := [f"missing field {key!r}" for key in sorted(required) if key not in given]:
            raise InvalidValue("; ".join(missing))
        return DeviceProfile(name=name, **values)
    if not isinstance(table["base"], str):
        raise InvalidValue("field 'base' must be the name of a profile")
    base = profile_named(table["base"])
    if base.device_type not in _TYPES or values.get("device_type", base.device_type) != base.device_type:
        wanted = values.get("device_type", " or ".join(_TYPES))
        raise InvalidValue(f"field 'base': {base.name} is a {base.device_type} device, not {wanted}")
    kept = {field: text for field, text in base.sources.items() if field.partition(".")[0] not in given}
    sources = {**kept, **values.pop("sources", {})}
    return replace(base, **{"aliases": (), **values, "name": name, "sources": sources})


def _faults(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors in the given fields."""
    for key, value in given.items():
        if key not in _FIELDS:
            near = difflib.get_close_matches(key, [*_FIELDS, "base"], n=1)
            yield f"unknown field {key[:80]!r}" + (f": did you mean {near[0]!r}?" if near else "")
        elif not _is_acceptable(key, value):
            yield f"field {key!r} cannot be {repr(value)[:80]}"


def _is_acceptable(key: str, value: Any) -> bool:
    match key:
        case "device_type":
            return value in _TYPES
        case "vendor_name" | "gcn_arch_name":
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
                field.partition(".")[0] in _FIELDS and _is_text(text) for field, text in value.items()
            )
        case _:
            return type(value) is int and 0 < value < 2**63


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= _MOST_TEXT
