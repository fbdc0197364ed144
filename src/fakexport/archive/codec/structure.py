"""Read the container structure of inputs or outputs from text that torch wrote. Needs no torch."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from json import loads  # A model may replace it in `json`.
from typing import Any

from fakexport.files.documents import DocumentError, field, items, mapping, text

TREESPEC_VERSION = 1
"""The version of the text that every supported torch writes."""

SEQUENCES = {"builtins.tuple": tuple, "builtins.list": list}
DICTIONARIES = {"builtins.dict": dict, "collections.OrderedDict": OrderedDict}
_MAX_DEPTH = 100
_MAX_PARTS = 200_000


@dataclass(frozen=True)
class Structure:
    """A container with its parts, or a leaf. It has the names of torch's `TreeSpec`.

    Args:
        type: The container, or None for a leaf.
        context: The keys of a dictionary; None for other containers.
    """

    type: Any
    context: Any
    parts: tuple[Structure, ...]

    def is_leaf(self) -> bool:
        return self.type is None

    def children(self) -> tuple[Structure, ...]:
        return self.parts

    @property
    def num_children(self) -> int:
        return len(self.parts)


_LEAF = Structure(None, None, ())


def read_structure(value: Any) -> Structure:
    """Decode a structure from text that torch wrote. Only plain containers are accepted."""
    document = _json(value)
    if type(document) is not list or len(document) != 2 or document[0] != TREESPEC_VERSION:
        raise DocumentError(f"expected a tree spec of version {TREESPEC_VERSION}")
    return _Reading().part(document[1], 0)


def _json(value: Any) -> Any:
    written = text(value)
    try:
        return loads(written)
    except (ValueError, RecursionError):
        raise DocumentError("not valid JSON") from None


class _Reading:
    def __init__(self) -> None:
        self._count = 0

    def part(self, value: Any, depth: int) -> Structure:
        part = mapping(value)
        self._count += 1
        if depth > _MAX_DEPTH or self._count > _MAX_PARTS:
            raise DocumentError("the tree spec is too large")
        children = field(part, "children_spec", lambda c: items(c, lambda child: self.part(child, depth + 1)))
        kind = part.get("type")
        if kind is None:
            if children or part.get("context") is not None:
                raise DocumentError("a leaf of the tree spec has children")
            return _LEAF
        if type(kind) is str and kind in SEQUENCES:
            if part.get("context") not in (None, "null"):
                raise DocumentError(f"a {kind} in the tree spec has a context")
            return Structure(SEQUENCES[kind], None, tuple(children))
        if type(kind) is str and kind in DICTIONARIES:
            keys = field(part, "context", _keys)
            if len(set(keys)) != len(keys) or len(keys) != len(children):
                raise DocumentError("the keys of a dictionary do not match its children")
            return Structure(DICTIONARIES[kind], keys, tuple(children))
        raise DocumentError(
            f"a container of type {str(kind)[:80]!r}; only tuples, lists and dictionaries are supported"
        ).within("type")


def _keys(value: Any) -> list[str | int]:
    keys = _json(value)
    if type(keys) is not list or not all(type(key) in (str, int) for key in keys):
        raise DocumentError("expected a list of keys that are strings or integers")
    return keys
