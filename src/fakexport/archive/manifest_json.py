"""Convert a manifest to the bytes of its record, and back from untrusted bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from json import dumps, loads  # A model may replace them in `json`.
from typing import Any, TypeVar, cast

from fakexport.archive.manifest import (
    DTYPE_BYTES,
    METHOD_NAME,
    MOST_METHODS,
    WEIGHTS_KINDS,
    Location,
    Manifest,
    MethodManifest,
    TensorEntry,
)
from fakexport.container import Digest, Limits
from fakexport.documents import (
    ADAPTER_MODES,
    CALLS,
    OPERATORS,
    PARAMETER_KINDS,
    UNBOUND_REASONS,
    AdapterRecord,
    CallRecord,
    DocumentError,
    GenerationDefaults,
    ParallelRecord,
    Parameter,
    Recipe,
    Scalar,
    StateTensor,
    Step,
    UnboundName,
    class_name,
    entries,
    field,
    identifier,
    integer,
    items,
    mapping,
    matching,
    module_name,
    one_of,
    operator_name,
    optional,
    parse_json,
    reader_of,
    record,
    sequence,
    text,
)

T = TypeVar("T")

FORMAT = "fakexport.archive/3"

_NAME = 4096
_SENTENCE = 10_000
_OF_FEW = ("prefix", "computed", "library_modules", "call", "adapter", "parallel", "parameters")
"Fields that are omitted when empty."
_DIMENSIONS = 64
_OPERANDS = 100_000
_MOST_STATE = 100_000
_MOST_TOKENS = 1_000_000

_sha256 = matching(re.compile(r"[0-9a-f]{64}"), "sha256 in hex")
_device = matching(re.compile(r"[a-z_]{1,32}(:[0-9]{1,5})?"), "device")
_version = matching(re.compile(r"[A-Za-z0-9_.+!-]{1,100}"), "version")
_dtype = one_of(DTYPE_BYTES, "dtype")
_method_name = matching(METHOD_NAME, "method name")


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as JSON in ASCII with sorted keys: equal manifests have equal bytes."""
    # A list, since the keys of objects are sorted and the methods have an order.
    methods = [{"method": method, **_to_json(about)} for method, about in manifest.methods.items()]
    value = {"format": FORMAT, **vars(manifest), "methods": methods}
    encoded = dumps(value, default=vars, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return encoded.encode() + b"\n"


def _to_json(manifest: MethodManifest) -> dict[str, Any]:
    maps = ("versions", "device_map", "library_modules", "computed")
    value = vars(manifest) | {name: dict(getattr(manifest, name)) for name in maps}
    if (adapter := manifest.adapter) is not None:
        value["adapter"] = {"mode": adapter.mode, "name": adapter.name}
    if (rank := manifest.parallel) is not None:
        value["parallel"] = {"degrees": rank.degrees, "rank": rank.rank, "ranks": rank.ranks}
    return {name: entry for name, entry in value.items() if entry or name not in _OF_FEW}


def method_to_json(manifest: MethodManifest) -> dict[str, Any]:
    """Return the description of one program; `method_from_json` reads it."""
    value = {"format": FORMAT, **_to_json(manifest)}
    plain: dict[str, Any] = loads(dumps(value, default=vars, allow_nan=False))
    return plain


def decode_manifest(content: bytes, limits: Limits | None = None) -> Manifest:
    """Return the manifest encoded in the bytes.

    Raises:
        DocumentError: Not JSON, another format version, a missing or unknown field, a value out of its
            range, two values that contradict each other; with the place of the value.
    """
    limits = limits or Limits()
    value = parse_json(content, most_bytes=limits.json_bytes, most_memory_bytes=limits.json_memory_bytes)
    _check_format(value)
    of_method = _readers(limits)
    readers: dict[str, Callable[[Any], Any]] = {
        "format": text,
        "methods": lambda value: items(value, lambda about: _method(about, of_method), MOST_METHODS),
        "shared": _many(lambda value: tuple(items(value, _pair, MOST_METHODS)), limits),
        "records": _many(_digest, limits),
    }
    fields = record(value, readers)
    methods = dict(fields["methods"])
    if len(methods) < len(fields["methods"]):
        raise DocumentError("two methods with the same name").within("methods")
    return _checked(Manifest, methods=methods, shared=fields["shared"], records=fields["records"])


def method_from_json(value: Any) -> MethodManifest:
    """Return what `method_to_json` described.

    Raises:
        DocumentError: as `decode_manifest`.
    """
    _check_format(value)
    fields = _record(value, {"format": text, **_readers(Limits())})
    del fields["format"]
    return _checked(MethodManifest, **fields)


def _check_format(value: Any) -> None:
    """Check the version first, before the other fields of a document look wrong."""
    found = mapping(value).get("format")
    kind = FORMAT.partition("/")[0]
    if isinstance(found, str) and found != FORMAT and found.startswith(f"{kind}/"):
        raise DocumentError(f"version {found[:40]!r}; this fakexport reads {FORMAT!r}").within("format")
    field(mapping(value), "format", one_of((FORMAT,), "fakexport format"))


def _method(value: Any, readers: dict[str, Callable[[Any], Any]]) -> tuple[str, MethodManifest]:
    fields = _record(value, {"method": _method_name, **readers})
    name = fields.pop("method")
    return name, _checked(MethodManifest, **fields)


def _record(value: Any, readers: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return as `record`, where `_OF_FEW` may be missing."""
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
    """Return the fields of a program."""
    return {
        "versions": lambda value: entries(value, _version),
        "source": _sentence,
        "topology": lambda value: optional(value, _sentence),
        "profiles": _many(_name, limits),
        "device_map": lambda value: entries(value, _device),
        "dtype": lambda value: optional(value, _dtype),
        "dynamic_shapes": lambda value: optional(value, text),
        "skipped_checks": _many(_sentence, limits),
        "load_hooks": _many(_sentence, limits),
        "unbound_constants": _many(_unbound, limits),
        "library_operators": _many(operator_name, limits),
        "library_modules": lambda value: entries(value, module_name),
        "library_classes": _many(class_name, limits),
        "weights": one_of(WEIGHTS_KINDS, "kind of weights"),
        "tensors": _many(_tensor, limits),
        "recipes": _many(_recipe, limits),
        "computed": lambda value: entries(value, lambda record: optional(record, _name)),
        "prefix": _pair,
        "call": _call,
        "adapter": _adapter,
        "parallel": _parallel,
        "parameters": _many(_parameter, limits),
    }


def _adapter(value: Any) -> AdapterRecord:
    mode = one_of(ADAPTER_MODES, "adapter mode")
    return AdapterRecord(**record(value, {"mode": mode, "name": _name}))


def _parallel(value: Any) -> ParallelRecord:
    return ParallelRecord(**record(value, {"degrees": _name, "rank": _size, "ranks": _size}))


def _scalar(value: Any) -> Scalar:
    if value is not None and type(value) not in (bool, int, float, str):
        raise DocumentError("expected a number, a text or null")
    return cast("Scalar", value)


def _many(read: Callable[[Any], T], limits: Limits) -> Callable[[Any], tuple[T, ...]]:
    return lambda value: tuple(items(value, read, limits.entries))


def _made(value: Any) -> tuple[str, int]:
    pair = sequence(value, 2)
    if len(pair) != 2:
        raise DocumentError("expected a name and an index")
    return _name(pair[0]), _size(pair[1])


def _checked(kind: Callable[..., T], *args: Any, **fields: Any) -> T:
    """Return the object of these fields; a contradiction between them is an error in the document."""
    try:
        return kind(*args, **fields)
    except ValueError as error:
        raise DocumentError(str(error)) from None


def _size(value: Any) -> int:
    return integer(value, lowest=0)


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(items(value, _size, _DIMENSIONS))


def _indices(value: Any) -> tuple[int, ...]:
    return tuple(items(value, _size, _OPERANDS))


def _name(value: Any) -> str:
    return text(value, _NAME)


def _sentence(value: Any) -> str:
    return text(value, _SENTENCE)


_PLAIN: Mapping[Any, Callable[[Any], Any]] = {str: _name, int: _size}
_digest = reader_of(Digest, by_type=_PLAIN, sha256=_sha256)
_location = reader_of(Location, by_type=_PLAIN, sha256=lambda value: optional(value, _sha256))
_tensor = reader_of(
    TensorEntry,
    most=10_000,
    by_type={**_PLAIN, Location: _location},
    shape=_sizes,
    stride=_sizes,
    dtype=_dtype,
    device=_device,
)
_step = reader_of(Step, most=_OPERANDS, operator=one_of(OPERATORS, "recipe operator"), values=_indices)
_recipe = reader_of(Recipe, most=_OPERANDS, by_type={str: _name, Step: _step, tuple[str, int]: _made})
_unbound = reader_of(
    UnboundName, by_type=_PLAIN, reason=one_of(UNBOUND_REASONS, "reason"), detail=_sentence, recipe=text
)
_parameter = reader_of(
    Parameter,
    name=identifier,
    kind=one_of(PARAMETER_KINDS, "kind of parameter"),
    defaults=lambda value: tuple(items(value, _scalar, 1)),
)
_state = reader_of(StateTensor, by_type=_PLAIN)
_defaults = reader_of(
    GenerationDefaults,
    most=_MOST_TOKENS,
    by_type=_PLAIN,
    not_applied=lambda value: tuple(items(value, _name, 100)),
)
_call = reader_of(
    CallRecord,
    most=_MOST_STATE,
    by_type={**_PLAIN, StateTensor: _state, GenerationDefaults: _defaults},
    workload=one_of(CALLS, "call of generation"),
)
