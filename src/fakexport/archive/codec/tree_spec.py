"""The structure of a program's inputs and outputs, as torch's JSON text inside of the JSON."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

from fakexport._torch.program_assembly import leaf_spec, tree_spec, tree_spec_text
from fakexport._torch.program_schema import TREESPEC_VERSION
from fakexport.documents import DocumentError, field, items, mapping, text
from fakexport.error import InvalidValue

_SEQUENCES = {"builtins.tuple": tuple, "builtins.list": list}
_DICTIONARIES = {"builtins.dict": dict, "collections.OrderedDict": OrderedDict}
_PLAIN = frozenset((*_SEQUENCES.values(), *_DICTIONARIES.values()))
_MAX_DEPTH = 100
_MAX_PARTS = 200_000


def tree_spec_to_text(spec: Any) -> str:
    """Return torch's text of a structure.

    Raises:
        ValueError: names the first container that is not plain Python, which a reader would have to import.
    """
    _refuse_foreign(spec)
    return tree_spec_text(spec, TREESPEC_VERSION)


def _refuse_foreign(spec: Any) -> None:
    if spec.is_leaf():
        return
    if spec.type not in _PLAIN:
        raise InvalidValue(
            f"a {spec.type.__module__}.{spec.type.__qualname__} among the inputs or outputs: only tuples, "
            "lists and dictionaries can be read without importing code"
        )
    if spec.type in _DICTIONARIES.values() and not all(type(key) in (str, int) for key in spec.context):
        raise InvalidValue(
            "a dictionary among the inputs or outputs has a key that is not a string or an integer"
        )
    for child in spec.children():
        _refuse_foreign(child)


def tree_spec_from_text(value: Any) -> Any:
    """Return the structure of torch's text; only plain containers are accepted."""
    document = _json(value)
    if type(document) is not list or len(document) != 2 or document[0] != TREESPEC_VERSION:
        raise DocumentError(f"expected a structure of version {TREESPEC_VERSION}")
    return _Reading().part(document[1], 0)


def _json(value: Any) -> Any:
    written = text(value)
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        raise DocumentError("not valid JSON") from None


class _Reading:
    def __init__(self) -> None:
        self._count = 0

    def part(self, value: Any, depth: int) -> Any:
        part = mapping(value)
        self._count += 1
        if depth > _MAX_DEPTH or self._count > _MAX_PARTS:
            raise DocumentError("the structure is too large")
        children = field(part, "children_spec", lambda c: items(c, lambda child: self.part(child, depth + 1)))
        kind = part.get("type")
        if kind is None:
            if children or part.get("context") is not None:
                raise DocumentError("a leaf of a structure that has parts")
            return leaf_spec()
        if type(kind) is str and kind in _SEQUENCES:
            if part.get("context") not in (None, "null"):
                raise DocumentError(f"a {kind} with a context")
            return tree_spec(_SEQUENCES[kind], None, children)
        if type(kind) is str and kind in _DICTIONARIES:
            keys = field(part, "context", _keys)
            if len(set(keys)) != len(keys) or len(keys) != len(children):
                raise DocumentError("a dictionary whose keys do not match its parts")
            return tree_spec(_DICTIONARIES[kind], keys, children)
        raise DocumentError(
            f"a container of type {str(kind)[:80]!r}; only tuples, lists and dictionaries are read"
        ).within("type")


def _keys(value: Any) -> list[str | int]:
    keys = _json(value)
    if type(keys) is not list or not all(type(key) in (str, int) for key in keys):
        raise DocumentError("expected a list of keys that are strings or integers")
    return keys
