"""A manifest as the bytes of its record, and back from bytes of an unknown author."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from fakexport.archive.json_text import JsonError, parse_json
from fakexport.archive.limits import Limits
from fakexport.archive.manifest import (
    DTYPE_BYTES,
    FORMAT,
    WEIGHTS_KINDS,
    Location,
    Manifest,
    TensorEntry,
    UnboundName,
    WeightsKind,
)
from fakexport.archive.new_container import Digest
from fakexport.archive.typed_value import TypedValue, ValueFault

__all__ = ["decode_manifest", "encode_manifest"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_DEVICE = re.compile(r"[a-z_]{1,32}(:[0-9]{1,5})?")
_WORD = re.compile(r"[A-Za-z0-9_.+!-]{1,100}")
_NAME = 4096
_SENTENCE = 10_000
_TEXT = 1 << 20
_DIMENSIONS = 64
_REASONS = ("parameter", "random", "unknown")


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON in ASCII, keys sorted: equal manifests give equal bytes."""
    value = {"format": FORMAT, **vars(manifest)}
    value["versions"] = dict(manifest.versions)
    value["device_map"] = dict(manifest.device_map)
    text = json.dumps(value, default=vars, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def decode_manifest(text: bytes, limits: Limits | None = None) -> Manifest:
    """The manifest that the bytes say.

    Raises:
        ValueFault: Not JSON, another format version, a missing or unknown key, a value out of its range, two
            values that contradict each other; with the path of the value.
    """
    limits = limits or Limits()
    try:
        value = parse_json(text, limits)
    except JsonError as error:
        raise ValueFault("", str(error)) from None
    _check_format(value)
    try:
        return _manifest(TypedValue(value), limits)
    except ValueFault:
        raise
    except ValueError as error:
        raise ValueFault("", str(error)) from None


def _check_format(value: Any) -> None:
    """Names another version as such, before its other keys look like faults."""
    found = value.get("format") if isinstance(value, dict) else None
    if isinstance(found, str) and found != FORMAT and found.startswith("fakexport.archive/"):
        raise ValueFault("format", f"version {found[:40]!r}; this fakexport reads {FORMAT!r}")


def _manifest(value: TypedValue, limits: Limits) -> Manifest:
    fields = value.fields({"format", *Manifest.__dataclass_fields__})
    fields["format"].one_of((FORMAT,), "format of fakexport")
    most = limits.entries
    return Manifest(
        versions={
            TypedValue(name, version.path).text(100, _WORD, "package"): version.text(100, _WORD, "version")
            for name, version in fields["versions"].pairs(100)
        },
        source=fields["source"].text(_SENTENCE),
        topology=fields["topology"].or_none(_sentence),
        profiles=tuple(item.text(_NAME) for item in fields["profiles"].items(most)),
        device_map={
            TypedValue(path, device.path).text(_NAME): device.text(40, _DEVICE, "device")
            for path, device in fields["device_map"].pairs(most)
        },
        dtype=fields["dtype"].or_none(_dtype),
        dynamic_shapes=fields["dynamic_shapes"].or_none(lambda item: item.text(_TEXT)),
        skipped_checks=tuple(map(_sentence, fields["skipped_checks"].items(1000))),
        unbound_constants=tuple(map(_unbound, fields["unbound_constants"].items(most))),
        weights=cast(WeightsKind, fields["weights"].one_of(WEIGHTS_KINDS, "kind of weights")),
        tensors=tuple(map(_tensor, fields["tensors"].items(most))),
        records=tuple(map(_digest, fields["records"].items(most))),
    )


def _tensor(value: TypedValue) -> TensorEntry:
    fields = value.fields(TensorEntry.__dataclass_fields__.keys())
    try:
        return TensorEntry(
            name=_name(fields["name"]),
            aliases=tuple(map(_name, fields["aliases"].items(10_000))),
            shape=_integers(fields["shape"]),
            stride=_integers(fields["stride"]),
            storage_offset=fields["storage_offset"].integer(),
            dtype=_dtype(fields["dtype"]),
            device=fields["device"].text(40, _DEVICE, "device"),
            is_parameter=fields["is_parameter"].boolean(),
            requires_grad=fields["requires_grad"].boolean(),
            persistent=fields["persistent"].boolean(),
            source=fields["source"].or_none(_name),
            location=fields["location"].or_none(_location),
        )
    except ValueFault:
        raise
    except ValueError as error:
        raise value.fault(str(error)) from None


def _location(value: TypedValue) -> Location:
    fields = value.fields(Location.__dataclass_fields__.keys())
    return Location(
        file=fields["file"].text(_NAME),
        offset=fields["offset"].integer(),
        length=fields["length"].integer(),
        sha256=fields["sha256"].or_none(_sha256),
    )


def _digest(value: TypedValue) -> Digest:
    fields = value.fields(Digest.__dataclass_fields__.keys())
    return Digest(
        name=_name(fields["name"]),
        size=fields["size"].integer(),
        sha256=_sha256(fields["sha256"]),
    )


def _unbound(value: TypedValue) -> UnboundName:
    fields = value.fields(UnboundName.__dataclass_fields__.keys())
    return UnboundName(
        name=_name(fields["name"]),
        reason=fields["reason"].one_of(_REASONS, "reason"),
        detail=_sentence(fields["detail"]),
        weight=fields["weight"].or_none(_name),
        operator=fields["operator"].or_none(_name),
    )


def _integers(value: TypedValue) -> tuple[int, ...]:
    return tuple(item.integer() for item in value.items(_DIMENSIONS))


def _name(value: TypedValue) -> str:
    return value.text(_NAME)


def _sha256(value: TypedValue) -> str:
    return value.text(64, _SHA256, "sha256 in hex")


def _sentence(value: TypedValue) -> str:
    return value.text(_SENTENCE)


def _dtype(value: TypedValue) -> str:
    return value.one_of(DTYPE_BYTES, "dtype")
