"""`ZOO.yaml`: which models a sweep checks, and in which ways."""

from __future__ import annotations

import difflib
import itertools
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakexport.documents import DocumentError, field, items, mapping, parse_yaml, source_text, text
from fakexport.error import FakexportError
from fakexport.files import read_file
from fakexport.processes import Limits

_MOST_BYTES = 16 << 20
_MOST_CHECKS = 10_000
_STATIC = "static"
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]iB)")
_WORKLOADS = ("forward", "prefill", "decode")
_TIMEOUT_S = 600.0


class ZooFileError(FakexportError, ValueError):
    """A zoo file cannot be read as it is. One line."""


@dataclass(frozen=True)
class ZooFile:
    """The checks of a sweep, every combination that the file names, and what each process may take.

    Sources are relative to the file's folder.
    """

    path: Path
    items: tuple[SweepItem, ...]
    limits: Limits


def read_zoo(path: Path) -> ZooFile:
    """Read a zoo file.

    Raises:
        ZooFileError: it is not YAML, has an unknown key or a value of the wrong type, or a check twice.
        OSError: it cannot be read.
    """
    return ZooFile(path, *items_of(read_file(path, most_bytes=_MOST_BYTES), path))


def items_of(content: bytes, path: Path) -> tuple[tuple[SweepItem, ...], Limits]:
    """Return what a zoo file says; `path` is for messages. Raises as `read_zoo`."""
    try:
        table = mapping(parse_yaml(content))
        _check_keys(table, {"models", "timeout", "memory", *_READERS})
        shared = _options(table)
        models = field(table, "models", lambda value: items(value, _model))
        timeout = field(table, "timeout", _seconds, default=_TIMEOUT_S)
        limits = Limits(timeout, field(table, "memory", _bytes) if "memory" in table else None)
    except DocumentError as error:
        place = f"{error.place}: " if error.place else ""
        raise ZooFileError(f"{path}: {place}{error.reason}") from error
    count = sum(_count({**shared, **model}) for model in models)
    if count > _MOST_CHECKS:
        raise ZooFileError(f"{path}: models: {count} checks; the limit is {_MOST_CHECKS}")
    found = [item for model in models for item in _combinations({**shared, **model})]
    if not found:
        raise ZooFileError(f"{path}: models: there are none")
    seen: set[str] = set()
    for item in found:
        if item.command in seen:
            raise ZooFileError(f"{path}: the same check twice: {item.command}")
        seen.add(item.command)
    return tuple(found), limits


def _count(given: Mapping[str, Any]) -> int:
    varied = ("targets", "dtypes", "dynamic", "workloads")
    return math.prod(len(given[key]) for key in varied if key in given)


def _combinations(given: Mapping[str, Any]) -> list[SweepItem]:
    fixed = {
        name: given[name]
        for name in ("device_map", "component", "assume", "inputs", "libraries")
        if name in given
    }
    varied = itertools.product(
        given.get("targets", ["cpu"]),
        given.get("dtypes", [None]),
        given.get("dynamic", [()]),
        given.get("workloads", ["forward"]),
    )
    return [
        SweepItem(source=given["source"], target=t, dtype=d, dynamic=s, workload=w, **fixed)
        for t, d, s, w in varied
    ]


def _model(value: Any) -> dict[str, Any]:
    """A source, or a table with that as `source` and options of its own."""
    if isinstance(value, str):
        return {"source": source_text(value)}
    table = mapping(value)
    _check_keys(table, {"source", *_READERS})
    return {"source": field(table, "source", source_text), **_options(table)}


def _options(table: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for written in table:
        key = _SPELLINGS.get(written, written)
        if key in _READERS:
            if key.replace("-", "_") in given:
                raise DocumentError(f"{key!r} is given twice").within(written)
            given[key.replace("-", "_")] = field(table, written, _READERS[key])
    return given


def _one_or_more(read: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def readings(value: Any) -> list[Any]:
        found = items(value, read) if isinstance(value, list) else [read(value)]
        if not found:
            raise DocumentError("expected at least one")
        return found

    return readings


def _sizes(value: Any) -> tuple[str, ...]:
    """`static`, one value of `--dynamic`, or a list of them that are given together."""
    if isinstance(value, list):
        return tuple(items(value, text))
    return () if text(value) == _STATIC else (value,)


def _workload(value: Any) -> str:
    if value not in _WORKLOADS:
        raise DocumentError(f"expected one of {', '.join(_WORKLOADS)}")
    return str(value)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(items(value, text) if isinstance(value, list) else [text(value)])


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < 10**9:
        raise DocumentError("expected a number of seconds")
    return float(value)


def _bytes(value: Any) -> int:
    found = _MEMORY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise DocumentError("expected a size such as '8 GiB'")
    return int(float(found[1]) * _UNITS[found[2]])


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "targets": _one_or_more(text),
    "dtypes": _one_or_more(text),
    "dynamic": _one_or_more(_sizes),
    "workloads": _one_or_more(_workload),
    "device-map": text,
    "component": text,
    "assume": _texts,
    "inputs": _texts,
    "libraries": _texts,
}
_SPELLINGS = {
    "target": "targets",
    "dtype": "dtypes",
    "workload": "workloads",
    "input": "inputs",
    "library": "libraries",
}


def _check_keys(table: Mapping[str, Any], known: set[str]) -> None:
    for key in table:
        if _SPELLINGS.get(key, key) not in known:
            near = difflib.get_close_matches(str(key), sorted(known), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it can have {', '.join(sorted(known))}"
            raise DocumentError(f"unknown key: {hint}").within(str(key))


@dataclass(frozen=True, kw_only=True)
class SweepItem:
    """A model, and how it is checked: the options of `fakexport check`, as they are written there.

    Args:
        source: The model.
        target: One topology.
        dtype, device_map, component: None for the default.
        dynamic: What `--dynamic` is given, in order; nothing for sizes that do not vary.
        workload: The call.
        assume, inputs, libraries: What `--assume`, `--input` and `--library` are given.
    """

    source: str
    target: str = "cpu"
    dtype: str | None = None
    dynamic: tuple[str, ...] = ()
    workload: str = "forward"
    device_map: str | None = None
    component: str | None = None
    assume: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """The command line after `fakexport`, without what only says how it is printed."""
        given = [
            ("--target", self.target),
            ("--device-map", self.device_map),
            ("--dtype", self.dtype),
            *(("--dynamic", each) for each in self.dynamic),
            ("--workload", self.workload if self.workload != "forward" else None),
            ("--component", self.component),
            *(("--assume", each) for each in self.assume),
            *(("--input", each) for each in self.inputs),
            *(("--library", each) for each in self.libraries),
        ]
        options = [text for name, value in given if value is not None for text in (name, value)]
        return ["check", self.source, *options]

    @property
    def command(self) -> str:
        """The command that does this check alone. It names the item in a run: no two have the same."""
        return shlex.join(["fakexport", *self.arguments])
