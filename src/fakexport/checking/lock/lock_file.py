"""Read and write `fakexport.lock`: deterministic TOML, which is validated because people may edit it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fakexport.checking.lock.lock_entry import Key, LockEntry
from fakexport.error import FakexportError
from fakexport.files import new_file, read_file
from fakexport.files.documents import (
    DocumentError,
    entries,
    field,
    integer,
    items,
    parse_toml,
    record,
    sequence,
    text,
)

if TYPE_CHECKING:
    from fakexport.exporting.program import Fingerprint

T = TypeVar("T")
FORMAT = 1
"""Version of the file format. It increases when a field changes its meaning or is removed."""

_HEAD = """\
# Written by `fakexport lock`, and compared by `fakexport check --locked`.
# Do not edit it: `fakexport check --update-lock` accepts what changed.
"""
_MOST_BYTES = 256 << 20
_MARKERS = re.compile(rb"^(?:<{7}|>{7}|\|{7}|={7})(?: |\r?$)", re.MULTILINE)
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class LockFileError(FakexportError, ValueError):
    """A lock file is missing or invalid. The message is one line."""


def write_lock(path: Path, locked: Iterable[LockEntry]) -> None:
    """Write a lock atomically; the order of the entries does not affect the bytes."""
    parts = ["\n".join(_entry_lines(entry)) for entry in sorted(locked, key=lambda entry: entry.key)]
    content = "\n".join([_HEAD + f"format = {FORMAT}\n", *(f"{part}\n" for part in parts)])
    with new_file(path, replaces_input=True) as file:
        file.write(content.encode(errors="backslashreplace"))


def read_lock(path: Path) -> Mapping[Key, LockEntry]:
    """Return the entries of a lock, by key.

    Raises:
        LockFileError: the file does not exist, has merge conflict markers, is invalid TOML, has a different
            format version, or has an edited entry.
        OSError: the file cannot be read.
    """
    if not path.exists():
        raise LockFileError(f"{path} does not exist: create it with `fakexport lock`")
    content = read_file(path, most_bytes=_MOST_BYTES)
    again = "delete the file and run `fakexport lock`"
    if mark := _MARKERS.search(content):
        line = content.count(b"\n", 0, mark.start()) + 1
        raise LockFileError(f"{path}:{line}: merge conflict: {again}")
    try:
        data = parse_toml(content)
    except DocumentError as error:
        raise LockFileError(f"{path}: {error}: {again}") from error
    if data.get("format") != FORMAT:
        raise LockFileError(f"{path}: expected format version {FORMAT}, got {data.get('format')!r}: {again}")
    try:
        found = field(data, "entry", lambda value: items(value, _entry), default=[])
    except DocumentError as error:
        raise LockFileError(f"{path}: {error.place}: {error.reason}: {again}") from error
    by_key = {entry.key: entry for entry in found}
    if len(by_key) != len(found):
        raise LockFileError(f"{path}: duplicate entry: {again}")
    return by_key


def _entry_lines(entry: LockEntry) -> Iterator[str]:
    data = _data(entry)
    yield "[[entry]]"
    yield from (f"{name} = {_toml(value, is_long=name in _LISTS)}" for name, value in data.items())
    yield f"checksum = {_toml(_checksum(data))}"


# Lists that are written with one line per item.
_LISTS = ("nodes", "ports", "constants", "properties")


def _texts(value: Any) -> dict[str, str]:
    return entries(value, text)


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "source": text,
    "target": text,
    "options": _texts,
    "topology": text,
    "verdict": text,
    "diagnostics": lambda found: tuple(items(found, text)),
    "versions": _texts,
    "weights": lambda found: entries(found, integer),
}
_OF_PROGRAM: Mapping[str, Callable[[Any], Any]] = {
    "digest": text,
    "node_count": integer,
    "operators": lambda found: entries(found, integer),
    "ranges": _texts,
    "properties": lambda found: tuple(items(found, text)),
    "structures": lambda found: items(found, text),
    "ports": lambda found: items(found, lambda line: _line(line, 5)),
    "constants": lambda found: items(found, lambda line: _line(line, 3)),
    "nodes": lambda found: items(found, lambda line: _line(line, 5)),
}


def _data(entry: LockEntry) -> dict[str, Any]:
    found = {name: _plain(getattr(entry, {"diagnostics": "codes"}.get(name, name))) for name in _FIELDS}
    found |= {name: dict(given) for name in _OPTIONAL if (given := getattr(entry, name))}
    if entry.program is not None:
        found |= {name: _plain(getattr(entry.program, name)) for name in _OF_PROGRAM}
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(map(_plain, value))
    return value if isinstance(value, (str, int)) else list(astuple(value))


def _checksum(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def _entry(value: Any) -> LockEntry:
    given = value if isinstance(value, dict) else {}
    of_program = _OF_PROGRAM if "digest" in given else {}
    optional = {name: read for name, read in _OPTIONAL.items() if name in given}
    fields = record(value, {**_FIELDS, **optional, **of_program, "checksum": text})
    if fields.pop("checksum") != _checksum(
        {name: item for name, item in given.items() if name != "checksum"}
    ):
        raise DocumentError(
            f"the entry of {fields['source']} for {fields['target']} was changed after it was written"
        )
    program = {name: fields.pop(name) for name in of_program}
    codes = fields.pop("diagnostics")
    return LockEntry(**fields, codes=codes, program=_program(program) if program else None)


def _ranks(value: Any) -> dict[str, str]:
    found = _texts(value)
    if unknown := next((rank for rank in found if not rank.isdecimal()), None):
        raise DocumentError(f"expected a rank number, got {unknown!r}").within("ranks")
    return found


_OPTIONAL: Mapping[str, Callable[[Any], Any]] = {"ranks": _ranks, "runtimes": _texts}


def _line(value: Any, texts: int) -> list[Any]:
    count, *rest = sequence(value, texts + 1) or [None]
    if len(rest) != texts:
        raise DocumentError(f"expected a number and {texts} strings")
    return [integer(count), *map(text, rest)]


def _program(fields: dict[str, Any]) -> Fingerprint:
    from fakexport.exporting.program import ConstantLine, Fingerprint, NodeLine, PortLine

    if len(fields["structures"]) != 2:
        raise DocumentError("expected two strings").within("structures")
    fields["structures"] = tuple(fields["structures"])
    del fields["operators"]  # Derived from the nodes.
    for name, kind in (("nodes", NodeLine), ("ports", PortLine), ("constants", ConstantLine)):
        fields[name] = tuple(kind(*line) for line in fields[name])
    return Fingerprint(**fields)


def _toml(value: Any, *, is_long: bool = False) -> str:
    """Return a value as TOML on one line; long lists have one line per item."""
    if isinstance(value, str):
        # TOML strings are like JSON strings, except for DEL and surrogates.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        listed = ", ".join(f"{_key(name)} = {_toml(item)}" for name, item in value.items())
        return f"{{{listed}}}"
    if isinstance(value, list):
        if is_long and value:
            return "\n".join(["[", *(f"  {_toml(item)}," for item in value), "]"])
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _toml(name)
