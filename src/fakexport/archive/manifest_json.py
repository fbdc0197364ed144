"""A manifest as the bytes of its record, and back from bytes of an unknown author."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from fakexport.archive.bundle_manifest import BUNDLE_FORMAT, METHOD_NAME, MOST_METHODS, BundleManifest
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
from fakexport.documents.library_names import class_name, module_name, operator_name
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
_OF_FEW = ("prefix", "library_modules")
"""Fields that are left out where they are empty, as archives had it before there were such."""
_DIMENSIONS = 64
_OPERANDS = 100_000
_REASONS = ("parameter", "random", "unknown")

_sha256 = matching(re.compile(r"[0-9a-f]{64}"), "sha256 in hex")
_device = matching(re.compile(r"[a-z_]{1,32}(:[0-9]{1,5})?"), "device")
_version = matching(re.compile(r"[A-Za-z0-9_.+!-]{1,100}"), "version")
_dtype = one_of(DTYPE_BYTES, "dtype")
_method_name = matching(METHOD_NAME, "name of a method")


def encode_manifest(manifest: Manifest | BundleManifest) -> bytes:
    """The manifest as JSON in ASCII, keys sorted: equal manifests give equal bytes."""
    value = _bundle_to_json(manifest) if isinstance(manifest, BundleManifest) else _to_json(manifest)
    encoded = json.dumps(value, default=vars, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return encoded.encode() + b"\n"


def _to_json(manifest: Manifest) -> dict[str, Any]:
    value = {"format": FORMAT, **vars(manifest)}
    value["versions"] = dict(manifest.versions)
    value["device_map"] = dict(manifest.device_map)
    value["library_modules"] = dict(manifest.library_modules)
    return {name: entry for name, entry in value.items() if entry or name not in _OF_FEW}


def _bundle_to_json(bundle: BundleManifest) -> dict[str, Any]:
    methods = {method: _to_json(manifest) for method, manifest in bundle.methods.items()}
    for manifest in methods.values():
        del manifest["format"], manifest["records"]
    # A list, since the keys of objects are sorted and the methods have an order.
    ordered = [{"method": method, **manifest} for method, manifest in methods.items()]
    return {"format": BUNDLE_FORMAT, **vars(bundle), "prefixes": dict(bundle.prefixes), "methods": ordered}


def decode_manifest(text: bytes, limits: Limits | None = None) -> Manifest | BundleManifest:
    """The manifest that the bytes say, of one program or of a bundle.

    Raises:
        DocumentError: Not JSON, another format version, a missing or unknown field, a value out of its
            range, two values that contradict each other; with the place of the value.
    """
    limits = limits or Limits()
    value = parse_json(text, most_bytes=limits.json_bytes, most_memory_bytes=limits.json_memory_bytes)
    _check_format(value)
    if isinstance(value, dict) and value.get("format") == BUNDLE_FORMAT:
        return _bundle(value, limits)
    readers = {"format": one_of((FORMAT,), "format of fakexport"), **_readers(limits)}
    readers["records"] = _many(_digest, limits)
    fields = _record(value, {**readers, "prefix": _pair})
    del fields["format"]
    return _checked(Manifest, fields)


def _check_format(value: Any) -> None:
    """Names another version as such, before its other fields look like faults."""
    found = value.get("format") if isinstance(value, dict) else None
    for known in (FORMAT, BUNDLE_FORMAT):
        kind = known.partition("/")[0]
        if isinstance(found, str) and found != known and found.startswith(f"{kind}/"):
            raise DocumentError(f"version {found[:40]!r}; this fakexport reads {known!r}").within("format")


def _bundle(value: Any, limits: Limits) -> BundleManifest:
    fields = record(
        value,
        {
            "format": text,
            "methods": lambda value: items(value, lambda found: _method(found, limits), MOST_METHODS),
            "prefixes": lambda value: entries(value, _pair),
            "shared": _many(lambda value: tuple(items(value, _pair, MOST_METHODS)), limits),
            "records": _many(_digest, limits),
        },
    )
    del fields["format"]
    methods = fields["methods"]
    fields["methods"] = dict(methods)
    if len(fields["methods"]) < len(methods):
        raise DocumentError("two methods of one name").within("methods")
    return _checked(BundleManifest, fields)


def _method(value: Any, limits: Limits) -> tuple[str, Manifest]:
    fields = _record(value, {"method": _method_name, **_readers(limits)})
    name = fields.pop("method")
    return name, _checked(Manifest, fields)


def _record(value: Any, readers: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """As `record`, where `_OF_FEW` may be missing."""
    given = value if isinstance(value, dict) else {}
    return record(
        value, {name: read for name, read in readers.items() if name in given or name not in _OF_FEW}
    )


def _pair(value: Any) -> tuple[str, str]:
    pair = items(value, _name, 2)
    if len(pair) != 2:
        raise DocumentError("expected two names")
    return pair[0], pair[1]


def _readers(limits: Limits) -> dict[str, Callable[[Any], Any]]:
    """The fields of a program."""
    return {
        "versions": lambda value: entries(value, _version),
        "source": _sentence,
        "topology": lambda value: optional(value, _sentence),
        "profiles": _many(_name, limits),
        "device_map": lambda value: entries(value, _device),
        "dtype": lambda value: optional(value, _dtype),
        "dynamic_shapes": lambda value: optional(value, text),
        "skipped_checks": _many(_sentence, limits),
        "unbound_constants": _many(_unbound, limits),
        "library_operators": _many(operator_name, limits),
        "library_modules": lambda value: entries(value, module_name),
        "library_classes": _many(class_name, limits),
        "weights": one_of(WEIGHTS_KINDS, "kind of weights"),
        "tensors": _many(_tensor, limits),
        "recipes": _many(_recipe, limits),
    }


def _many(read: Callable[[Any], T], limits: Limits) -> Callable[[Any], tuple[T, ...]]:
    return lambda value: tuple(items(value, read, limits.entries))


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
