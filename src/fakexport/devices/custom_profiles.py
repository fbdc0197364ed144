"""Device profiles of the user: read from a file of an unknown author, and known inside a block."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fakexport.devices.profile import (
    FIELDS,
    DeviceProfile,
    default_profiles,
    field_faults,
    is_acceptable,
    known_profiles,
    load_profiles,
    profile_named,
)
from fakexport.diagnostics import escaped
from fakexport.documents import DocumentError, parse_json, parse_toml
from fakexport.error import FakexportError, InvalidValue
from fakexport.files import read_file

_MOST_BYTES = 1 << 20
_MOST_PROFILES = 1000
_TYPES = ("cuda", "xpu", "mps")
# What a topology can name: not `8xH100`, not `cuda:0`, not `cpu+H100`.
_NAME = re.compile(r"(?![0-9]+[xX])[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ProfileError(FakexportError, ValueError):
    """A file of device profiles cannot be read as it is. One line."""


@contextmanager
def device_profiles(file: str | os.PathLike[str]) -> Iterator[Mapping[str, DeviceProfile]]:
    """Context manager: the profiles of a file are known by name, next to those that fakexport ships.

    The profiles are known in this thread or asyncio task. Blocks may be nested: all of their profiles are
    known in the inner one.

    Args:
        file: A `.toml` or `.json` file with a table per profile, whose fields are those of `DeviceProfile`
            (docs/devices.md). `base` names a known profile, which has the fields that the table leaves out.
    Returns:
        On entry, the profiles of the file by name.
    Raises:
        ProfileError: a name that is taken or not allowed, an unknown or missing field, or a wrong value.
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


def _read(path: Path) -> dict[str, DeviceProfile]:
    tables = _tables(path)
    if len(tables) > _MOST_PROFILES:
        raise ProfileError(f"{path}: {len(tables)} profiles; at most {_MOST_PROFILES} are read")
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
            raise ProfileError(f"{path}: profiles are read from a .toml or a .json file")
    except DocumentError as error:
        raise ProfileError(f"{path}: {error}") from error
    if not isinstance(tables, dict):
        raise ProfileError(f"{path}: expected a table per profile, got {type(tables).__name__}")
    return tables


def _check_name(name: str, taken: set[str]) -> None:
    """Check that a topology can mean this profile by the name, and no other one; remember it."""
    if not _NAME.fullmatch(name):
        raise InvalidValue(
            f"the name {name[:80]!r} cannot be used in a topology: write letters, digits, `.`, `_`, `-`, at "
            "most 64, and not a count as in 8xH100"
        )
    if name.casefold() in taken:
        raise InvalidValue(f"the name {name!r} is taken")
    taken.add(name.casefold())


def _profile(name: str, table: Any) -> DeviceProfile:
    if not isinstance(table, dict):
        raise InvalidValue(f"expected a table, got {type(table).__name__}")
    given = {key: value for key, value in table.items() if key != "base"}
    if faults := list(_faults(given)):
        raise InvalidValue("; ".join(faults))
    values = _values(given)
    if "base" not in table:
        if faults := list(field_faults(given)):
            raise InvalidValue("; ".join(faults))
        return DeviceProfile(name=name, **values)
    if not isinstance(table["base"], str):
        raise InvalidValue("field 'base' must be the name of a profile")
    base = profile_named(table["base"])
    if base.device_type not in _TYPES or values.get("device_type", base.device_type) != base.device_type:
        raise InvalidValue(f"field 'base': {base.name} is a {base.device_type} device")
    kept = {field: text for field, text in base.sources.items() if field.partition(".")[0] not in given}
    sources = {**kept, **values.pop("sources", {})}
    return replace(base, **{"aliases": (), **values, "name": name, "sources": sources})


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as a profile has them."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
    }
    if "peak_flops" in values:
        values["peak_flops"] = {dtype: float(rate) for dtype, rate in values["peak_flops"].items()}
    return values


def _faults(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the fields that are there."""
    for key, value in given.items():
        if key not in FIELDS:
            near = difflib.get_close_matches(key, [*FIELDS, "base"], n=1)
            yield f"unknown field {key[:80]!r}" + (f": did you mean {near[0]!r}?" if near else "")
        elif not is_acceptable(key, value) or (key == "device_type" and value not in _TYPES):
            yield f"field {key!r} cannot be {repr(value)[:80]}"
