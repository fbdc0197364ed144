"""The file `fakexport.lock`: TOML, written deterministically, and read as someone may have edited it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fakexport.documents import (
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
from fakexport.error import FakexportError
from fakexport.files import new_file, read_file
from fakexport.lock.lock_entry import Key, LockEntry

if TYPE_CHECKING:
    from fakexport.program import Fingerprint

T = TypeVar("T")
FORMAT = 1
"""Version of the file. It rises when a field changes its meaning or goes away."""

_HEAD = """\
# Written by `fakexport lock`, and compared by `fakexport check --locked`.
# Do not edit it: `fakexport check --update-lock` accepts what changed.
"""
_MOST_BYTES = 256 << 20
_MARKERS = re.compile(rb"^(?:<{7}|>{7}|\|{7}|={7})(?: |\r?$)", re.MULTILINE)
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class LockFileError(FakexportError, ValueError):
    """A lock is not there, or not as `fakexport lock` wrote it. One line."""


@dataclass(frozen=True)
class LockFile:
    """A lock.

    Args:
        path: The file.
        entries: By what was asked.
    """

    path: Path
    entries: Mapping[Key, LockEntry]


def write_lock(path: Path, locked: Iterable[LockEntry]) -> None:
    """Write a lock as a whole or not at all; the same entries in any order are the same bytes.

    Raises:
        FileWriteError: it could not be written.
    """
    parts = ["\n".join(_entry_lines(entry)) for entry in sorted(locked, key=lambda entry: entry.key)]
    content = "\n".join([_HEAD + f"format = {FORMAT}\n", *(f"{part}\n" for part in parts)])
    with new_file(path, replaces_input=True) as file:
        file.write(content.encode(errors="backslashreplace"))


def read_lock(path: Path) -> LockFile:
    """Return what `write_lock` wrote.

    Raises:
        LockFileError: there is no such file, it has the marks of a merge conflict, is not TOML, is of another
            version, or an entry was edited.
        OSError: it cannot be read.
    """
    if not path.exists():
        raise LockFileError(f"there is no {path}: write it with `fakexport lock`")
    content = read_file(path, most_bytes=_MOST_BYTES)
    again = "delete it and run `fakexport lock`"
    if mark := _MARKERS.search(content):
        line = content.count(b"\n", 0, mark.start()) + 1
        raise LockFileError(f"{path}:{line}: a merge conflict: {again}")
    try:
        data = parse_toml(content)
    except DocumentError as error:
        raise LockFileError(f"{path}: {error}: {again}") from error
    if data.get("format") != FORMAT:
        raise LockFileError(f"{path}: format {data.get('format')!r} and not {FORMAT}: {again}")
    try:
        found = field(data, "entry", lambda value: items(value, _entry), default=[])
    except DocumentError as error:
        raise LockFileError(f"{path}: {error.place}: {error.reason}: {again}") from error
    by_key = {entry.key: entry for entry in found}
    if len(by_key) != len(found):
        raise LockFileError(f"{path}: an entry is there twice: {again}")
    return LockFile(path, by_key)


def _entry_lines(entry: LockEntry) -> Iterator[str]:
    data = _data(entry)
    yield "[[entry]]"
    yield from (f"{name} = {_toml(value, is_long=name in _LISTS)}" for name, value in data.items())
    yield f"checksum = {_toml(_checksum(data))}"


# Lists with a line for each item.
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
    if entry.ranks:
        found["ranks"] = dict(entry.ranks)
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
    of_ranks = {"ranks": _ranks} if "ranks" in given else {}
    fields = record(value, {**_FIELDS, **of_ranks, **of_program, "checksum": text})
    if fields.pop("checksum") != _checksum(
        {name: item for name, item in given.items() if name != "checksum"}
    ):
        raise DocumentError(f"the entry of {fields['source']} for {fields['target']} was edited")
    program = {name: fields.pop(name) for name in of_program}
    codes = fields.pop("diagnostics")
    return LockEntry(**fields, codes=codes, program=_program(program) if program else None)


def _ranks(value: Any) -> dict[str, str]:
    found = _texts(value)
    if unknown := next((rank for rank in found if not rank.isdecimal()), None):
        raise DocumentError(f"{unknown!r} is not a rank").within("ranks")
    return found


def _line(value: Any, texts: int) -> list[Any]:
    """Read a count and so many texts."""
    count, *rest = sequence(value, texts + 1) or [None]
    if len(rest) != texts:
        raise DocumentError(f"expected a number and {texts} strings")
    return [integer(count), *map(text, rest)]


def _program(fields: dict[str, Any]) -> Fingerprint:
    from fakexport.program import ConstantLine, Fingerprint, NodeLine, PortLine

    if len(fields["structures"]) != 2:
        raise DocumentError("expected two strings").within("structures")
    fields["structures"] = tuple(fields["structures"])
    del fields["operators"]  # What the nodes say.
    for name, kind in (("nodes", NodeLine), ("ports", PortLine), ("constants", ConstantLine)):
        fields[name] = tuple(kind(*line) for line in fields[name])
    return Fingerprint(**fields)


def _toml(value: Any, *, is_long: bool = False) -> str:
    """Return a value as TOML on one line; a long list has a line for each item."""
    if isinstance(value, str):
        # A TOML string is one of JSON, but for DEL and for halves of characters.
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
