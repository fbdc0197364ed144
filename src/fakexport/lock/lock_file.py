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


def _data(entry: LockEntry) -> dict[str, Any]:
    data: dict[str, Any] = {
        "source": entry.source,
        "target": entry.target,
        "options": dict(entry.options),
        "topology": entry.topology,
        "verdict": entry.verdict,
        "diagnostics": list(entry.codes),
        "versions": dict(entry.versions),
        "weights": dict(entry.weights),
        **({"ranks": dict(entry.ranks)} if entry.ranks else {}),
    }
    program = entry.program
    if program is None:
        return data
    return {
        **data,
        "digest": program.digest,
        "node_count": program.node_count,
        "operators": program.operators,
        "ranges": dict(program.ranges),
        "properties": list(program.properties),
        "structures": list(program.structures),
        "ports": [list(astuple(line)) for line in program.ports],
        "constants": [list(astuple(line)) for line in program.constants],
        "nodes": [list(astuple(line)) for line in program.nodes],
    }


def _checksum(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def _entry(value: Any) -> LockEntry:
    readers: dict[str, Callable[[Any], Any]] = {
        "source": text,
        "target": text,
        "options": lambda found: entries(found, text),
        "topology": text,
        "verdict": text,
        "diagnostics": lambda found: items(found, text),
        "versions": lambda found: entries(found, text),
        "weights": lambda found: entries(found, integer),
    }
    of_program: dict[str, Callable[[Any], Any]] = {
        "digest": text,
        "node_count": integer,
        "operators": lambda found: entries(found, integer),
        "ranges": lambda found: entries(found, text),
        "properties": lambda found: items(found, text),
        "structures": lambda found: items(found, text),
        "ports": lambda found: items(found, lambda line: _line(line, 5)),
        "constants": lambda found: items(found, lambda line: _line(line, 3)),
        "nodes": lambda found: items(found, lambda line: _line(line, 5)),
    }
    has_program = isinstance(value, dict) and "digest" in value
    has_ranks = isinstance(value, dict) and "ranks" in value
    known = {
        **readers,
        **({"ranks": _ranks} if has_ranks else {}),
        **(of_program if has_program else {}),
        "checksum": text,
    }
    fields = record(value, known)
    checksum = fields.pop("checksum")
    if checksum != _checksum({name: item for name, item in value.items() if name != "checksum"}):
        raise DocumentError(f"the entry of {fields['source']} for {fields['target']} was edited")
    return LockEntry(
        source=fields["source"],
        target=fields["target"],
        options=fields["options"],
        topology=fields["topology"],
        verdict=fields["verdict"],
        codes=tuple(fields["diagnostics"]),
        versions=fields["versions"],
        weights=fields["weights"],
        program=_program(fields) if has_program else None,
        ranks=fields.get("ranks", {}),
    )


def _ranks(value: Any) -> dict[str, str]:
    found = entries(value, text)
    if unknown := next((rank for rank in found if not rank.isdecimal()), None):
        raise DocumentError(f"{unknown!r} is not a rank").within("ranks")
    return dict(found)


def _line(value: Any, texts: int) -> list[Any]:
    """Read a count and so many texts."""
    count, *rest = sequence(value, texts + 1) or [None]
    if len(rest) != texts:
        raise DocumentError(f"expected a number and {texts} strings")
    return [integer(count), *map(text, rest)]


def _program(fields: Mapping[str, Any]) -> Fingerprint:
    from fakexport.program import ConstantLine, Fingerprint, NodeLine, PortLine

    if len(fields["structures"]) != 2:
        raise DocumentError("expected two strings").within("structures")
    return Fingerprint(
        digest=fields["digest"],
        node_count=fields["node_count"],
        nodes=tuple(NodeLine(*line) for line in fields["nodes"]),
        ports=tuple(PortLine(*line) for line in fields["ports"]),
        constants=tuple(ConstantLine(*line) for line in fields["constants"]),
        structures=(fields["structures"][0], fields["structures"][1]),
        ranges=fields["ranges"],
        properties=tuple(fields["properties"]),
    )


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
