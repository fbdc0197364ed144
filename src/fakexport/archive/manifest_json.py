"""A manifest as the bytes of its record, and back from bytes of an unknown author."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from fakexport.archive.container.limits import Limits
from fakexport.archive.container.writer import Digest
from fakexport.archive.manifest import (
    DTYPE_BYTES,
    FORMAT,
    WEIGHTS_KINDS,
    Location,
    Manifest,
    TensorEntry,
    UnboundName,
)
from fakexport.documents.document_error import DocumentError
from fakexport.documents.json_text import parse_json
from fakexport.documents.recipe import OPERATORS, Recipe, Step
from fakexport.documents.typed_json import (
    boolean,
    entries,
    integer,
    items,
    matching,
    one_of,
    optional,
    record,
    sequence,
    text,
)

__all__ = ["decode_manifest", "encode_manifest"]

T = TypeVar("T")

_NAME = 4096
_SENTENCE = 10_000
_DIMENSIONS = 64
_OPERANDS = 100_000
_REASONS = ("parameter", "random", "unknown")

_sha256 = matching(re.compile(r"[0-9a-f]{64}"), "sha256 in hex")
_device = matching(re.compile(r"[a-z_]{1,32}(:[0-9]{1,5})?"), "device")
_version = matching(re.compile(r"[A-Za-z0-9_.+!-]{1,100}"), "version")
_operator = matching(re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){2}", re.ASCII), "operator", _NAME)
_dtype = one_of(DTYPE_BYTES, "dtype")


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON in ASCII, keys sorted: equal manifests give equal bytes."""
    value = {"format": FORMAT, **vars(manifest)}
    value["versions"] = dict(manifest.versions)
    value["device_map"] = dict(manifest.device_map)
    encoded = json.dumps(value, default=vars, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return encoded.encode() + b"\n"


def decode_manifest(text: bytes, limits: Limits | None = None) -> Manifest:
    """The manifest that the bytes say.

    Raises:
        DocumentError: Not JSON, another format version, a missing or unknown field, a value out of its
            range, two values that contradict each other; with the place of the value.
    """
    limits = limits or Limits()
    value = parse_json(text, most_bytes=limits.json_bytes, most_memory_bytes=limits.json_memory_bytes)
    _check_format(value)
    return _manifest(value, limits)


def _check_format(value: Any) -> None:
    """Names another version as such, before its other fields look like faults."""
    found = value.get("format") if isinstance(value, dict) else None
    if isinstance(found, str) and found != FORMAT and found.startswith("fakexport.archive/"):
        raise DocumentError(f"version {found[:40]!r}; this fakexport reads {FORMAT!r}").within("format")


def _manifest(value: Any, limits: Limits) -> Manifest:
    def many(read: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:
        return lambda value: tuple(items(value, read, limits.entries))

    fields = record(
        value,
        {
            "format": one_of((FORMAT,), "format of fakexport"),
            "versions": lambda value: entries(value, _version),
            "source": _sentence,
            "topology": lambda value: optional(value, _sentence),
            "profiles": many(_name),
            "device_map": lambda value: entries(value, _device),
            "dtype": lambda value: optional(value, _dtype),
            "dynamic_shapes": lambda value: optional(value, text),
            "skipped_checks": many(_sentence),
            "unbound_constants": many(_unbound),
            "library_operators": many(_operator),
            "weights": one_of(WEIGHTS_KINDS, "kind of weights"),
            "tensors": many(_tensor),
            "recipes": many(_recipe),
            "records": many(_digest),
        },
    )
    del fields["format"]
    return _checked(Manifest, fields)


def _tensor(value: Any) -> TensorEntry:
    return _checked(
        TensorEntry,
        record(
            value,
            {
                "name": _name,
                "aliases": lambda value: tuple(items(value, _name, 10_000)),
                "shape": _sizes,
                "stride": _sizes,
                "storage_offset": _size,
                "dtype": _dtype,
                "device": _device,
                "is_parameter": boolean,
                "requires_grad": boolean,
                "persistent": boolean,
                "source": lambda value: optional(value, _name),
                "location": lambda value: optional(value, _location),
            },
        ),
    )


def _recipe(value: Any) -> Recipe:
    readers = {
        "entries": lambda value: tuple(items(value, _name, _OPERANDS)),
        "steps": lambda value: tuple(items(value, _step, _OPERANDS)),
        "weights": lambda value: tuple(items(value, _made, _OPERANDS)),
    }
    return Recipe(**record(value, readers))


def _step(value: Any) -> Step:
    readers = {
        "operator": one_of(OPERATORS, "operator of a recipe"),
        "values": lambda value: tuple(items(value, _size, _OPERANDS)),
        "numbers": lambda value: tuple(items(value, integer, _OPERANDS)),
    }
    return Step(**record(value, readers))


def _made(value: Any) -> tuple[str, int]:
    pair = sequence(value, 2)
    if len(pair) != 2:
        raise DocumentError("expected a name and an index")
    return _name(pair[0]), _size(pair[1])


def _location(value: Any) -> Location:
    readers = {
        "file": _name,
        "offset": _size,
        "length": _size,
        "sha256": lambda value: optional(value, _sha256),
    }
    return Location(**record(value, readers))


def _digest(value: Any) -> Digest:
    return Digest(**record(value, {"name": _name, "size": _size, "sha256": _sha256}))


def _unbound(value: Any) -> UnboundName:
    readers = {
        "name": _name,
        "reason": one_of(_REASONS, "reason"),
        "detail": _sentence,
        "weight": lambda value: optional(value, _name),
        "operator": lambda value: optional(value, _name),
    }
    return UnboundName(**record(value, readers))


def _checked(kind: Callable[..., T], fields: dict[str, Any]) -> T:
    """The object of these fields; what they contradict each other in is a fault of the document."""
    try:
        return kind(**fields)
    except ValueError as error:
        raise DocumentError(str(error)) from None


def _size(value: Any) -> int:
    return integer(value, lowest=0)


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(items(value, _size, _DIMENSIONS))


def _name(value: Any) -> str:
    return text(value, _NAME)


def _sentence(value: Any) -> str:
    return text(value, _SENTENCE)
