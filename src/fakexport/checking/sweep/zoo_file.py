"""`ZOO.yaml`: the models and configurations that a sweep checks."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakexport.error import FakexportError
from fakexport.files import escaped, read_file
from fakexport.files.documents import (
    DocumentError,
    boolean,
    check_keys,
    field,
    items,
    mapping,
    parse_yaml,
    source_text,
    text,
)
from fakexport.files.processes import Limits

_MOST_BYTES = 16 << 20
_MOST_CHECKS = 10_000
_STATIC = "static"
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]iB)")
_WORKLOADS = ("forward", "prefill", "decode", "chunk")
_TIMEOUT_S = 600.0


class ZooFileError(FakexportError, ValueError):
    """A zoo file is invalid. The message is one line."""


@dataclass(frozen=True)
class ZooFile:
    """The checks of a sweep, which are all combinations in the file, and the limits of each process.

    Sources are relative to the file's folder.
    """

    path: Path
    items: tuple[SweepItem, ...]
    limits: Limits


def read_zoo(path: Path) -> ZooFile:
    """Read a zoo file.

    Raises:
        ZooFileError: invalid YAML, an unknown key, a value of the wrong type, or a duplicate check.
        OSError: the file cannot be read.
    """
    return ZooFile(path, *items_of(read_file(path, most_bytes=_MOST_BYTES), path))


def items_of(content: bytes, path: Path) -> tuple[tuple[SweepItem, ...], Limits]:
    """Parse the content of a zoo file. `path` is for messages. Raises the same errors as `read_zoo`."""
    try:
        table = mapping(parse_yaml(content))
        check_keys(table, {"models", "timeout", "memory", *_KEYS}, _SPELLINGS)
        shared = _options(table)
        models = field(table, "models", lambda value: items(value, _model))
        timeout = field(table, "timeout", _seconds, default=_TIMEOUT_S)
        limits = Limits(timeout, field(table, "memory", _bytes) if "memory" in table else None)
    except DocumentError as error:
        place = f"{error.place}: " if error.place else ""
        raise ZooFileError(f"{path}: {place}{error.reason}") from error
    choices: list[tuple[str, _Given]] = [
        (source, {"targets": [("cpu",)], **shared, **own}) for source, own in models
    ]
    count = sum(math.prod(map(len, given.values())) for _, given in choices)
    if count > _MOST_CHECKS:
        raise ZooFileError(f"{path}: the models define {count} checks; the limit is {_MOST_CHECKS}")
    found = [item for source, given in choices for item in _combinations(source, given)]
    if not found:
        raise ZooFileError(f"{path}: models: expected at least one model")
    seen: set[str] = set()
    for item in found:
        if item.command in seen:
            raise ZooFileError(f"{path}: duplicate check: {escaped(item.command)}")
        seen.add(item.command)
    return tuple(found), limits


def _combinations(source: str, given: _Given) -> Iterator[SweepItem]:
    named = [
        [tuple((option,) if key in _FLAGS else (option, value) for value in values) for values in given[key]]
        for key, (option, _) in _KEYS.items()
        if key in given
    ]
    for chosen in itertools.product(*named):
        yield SweepItem(source, tuple(itertools.chain.from_iterable(chosen)))


def _model(value: Any) -> tuple[str, _Given]:
    if isinstance(value, str):
        return source_text(value), {}
    table = mapping(value)
    check_keys(table, {"source", *_KEYS}, _SPELLINGS)
    return field(table, "source", source_text), _options(table)


def _options(table: dict[str, Any]) -> _Given:
    given: _Given = {}
    for written in table:
        key = _SPELLINGS.get(written, written)
        if key in given:
            raise DocumentError(f"{key!r} is given twice, in singular and plural").within(written)
        if key in _KEYS:
            given[key] = field(table, written, _KEYS[key][1])
    return given


def _each(read: Callable[[Any], tuple[str, ...]]) -> Callable[[Any], list[tuple[str, ...]]]:
    """Return a reader of one value or a list of values. Each value becomes a separate check."""

    def readings(value: Any) -> list[tuple[str, ...]]:
        found = items(value, read) if isinstance(value, list) else [read(value)]
        if not found:
            raise DocumentError("expected at least one value")
        return found

    return readings


def _text(value: Any) -> tuple[str, ...]:
    return (text(value),)


def _sizes(value: Any) -> tuple[str, ...]:
    """Parse `static`, one value of `--dynamic`, or a list of values for one check."""
    if isinstance(value, list):
        return tuple(items(value, text))
    return () if text(value) == _STATIC else (value,)


def _workload(value: Any) -> tuple[str, ...]:
    if value not in _WORKLOADS:
        raise DocumentError(f"expected one of {', '.join(_WORKLOADS)}")
    return () if value == _WORKLOADS[0] else (value,)


def _texts(value: Any) -> list[tuple[str, ...]]:
    """Parse one value, or a list of values, for a single check."""
    return [tuple(items(value, text) if isinstance(value, list) else [text(value)])]


def _flag(value: Any) -> list[tuple[str, ...]]:
    return [("true",) if boolean(value) else ()]


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < 10**9:
        raise DocumentError("expected a positive number of seconds")
    return float(value)


def _bytes(value: Any) -> int:
    found = _MEMORY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise DocumentError("expected a size such as '8 GiB'")
    return int(float(found[1]) * _UNITS[found[2]])


_Given = dict[str, list[tuple[str, ...]]]
"""Key of the file -> the choices for its option, each with the values for one check."""

_KEYS: Mapping[str, tuple[str, Callable[[Any], list[tuple[str, ...]]]]] = {
    "targets": ("--target", _each(_text)),
    "device-map": ("--device-map", lambda value: [_text(value)]),
    "dtypes": ("--dtype", _each(_text)),
    "dynamic": ("--dynamic", _each(_sizes)),
    "workloads": ("--workload", _each(_workload)),
    "runtimes": ("--runtime", _texts),
    "component": ("--component", lambda value: [_text(value)]),
    "assume": ("--assume", _texts),
    "inputs": ("--input", _texts),
    "libraries": ("--library", _texts),
    "trust-remote-code": ("--trust-remote-code", _flag),
}
"""Key of the file -> the option of `fakexport check`, and the reader of its choices."""

_FLAGS = ("trust-remote-code",)

_SPELLINGS = {
    "target": "targets",
    "dtype": "dtypes",
    "workload": "workloads",
    "runtime": "runtimes",
    "input": "inputs",
    "library": "libraries",
}


@dataclass(frozen=True)
class SweepItem:
    """A model and the options of `fakexport check`, in order. An option is its name, and its value if any."""

    source: str
    options: tuple[tuple[str, ...], ...] = (("--target", "cpu"),)

    def values(self, option: str) -> list[str]:
        """Return the values of an option, in order. The value of a flag is its name."""
        return [words[-1] for words in self.options if words[0] == option]

    @property
    def arguments(self) -> list[str]:
        """Arguments for `fakexport`, without output options."""
        return ["check", self.source, *itertools.chain.from_iterable(self.options)]

    @property
    def command(self) -> str:
        """The command that runs only this check. It identifies the item in a run."""
        return shlex.join(["fakexport", *self.arguments])
