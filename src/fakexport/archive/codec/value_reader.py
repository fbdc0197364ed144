"""Read the values in a program's document: descriptions of tensors, and symbolic numbers. Needs no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fakexport.archive.manifest import DTYPE_BYTES
from fakexport.files.documents import (
    MAX_INTEGER,
    DocumentError,
    boolean,
    decimal,
    field,
    identifier,
    integer,
    items,
    mapping,
    optional,
    text,
    union,
)

from .shape_text import shape_text
from .shape_tree import is_truth, read_shape

DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16",
    29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu", 34: "uint32", 35: "uint64",
}  # fmt: skip
"""Codes of dtypes in torch's format."""
STRIDED = 7
"""Code of the strided layout in torch's format."""
DEVICE_TYPES = frozenset(
    ("cpu", "cuda", "xpu", "mps", "meta", "hpu", "mtia", "xla", "privateuseone", "maia", "ipu")
)
_MAX_RANK = 64
_CLASS = re.compile(r"__torch__\.torch\.classes(\.[A-Za-z_]\w*){2,}", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)
class Description:
    """The validated description of a tensor in a document. Dtypes and devices are names, as in torch.

    Args:
        sizes, strides, offset: Integers, or what the reader made of symbolic numbers.
    """

    dtype: str
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    device: str
    requires_grad: bool


class ValueReader:
    """Read the values of one program. A symbolic number becomes its text, such as `2*s0 + 1`."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str, Any], Any] = {}

    def describe(self, value: Any) -> Description:
        """Check the description of a tensor."""
        owner = mapping(value)
        dtype = field(owner, "dtype", read_dtype)
        sizes = tuple(field(owner, "sizes", lambda v: items(v, self.size)))
        strides = tuple(field(owner, "strides", lambda v: items(v, self.size)))
        offset = field(owner, "storage_offset", lambda v: _not_negative(self.sym_int(v, "offset")))
        device = field(owner, "device", read_device)
        requires_grad = field(owner, "requires_grad", boolean)
        if field(owner, "layout", integer) != STRIDED:
            raise DocumentError("only strided tensors are supported").within("layout")
        if len(sizes) != len(strides) or len(sizes) > _MAX_RANK:
            raise DocumentError(f"{len(sizes)} sizes but {len(strides)} strides")
        if requires_grad and not dtype.startswith(("float", "bfloat", "complex")):
            raise DocumentError(f"torch.{dtype} tensors cannot require gradients").within("requires_grad")
        if all(type(number) is int for number in (offset, *sizes, *strides)):
            _refuse_beyond_memory(sizes, strides, offset, DTYPE_BYTES[dtype])
        return Description(dtype, sizes, strides, offset, device, requires_grad)

    def size(self, value: Any) -> Any:
        """Return a size or a stride, which must not be negative."""
        return _not_negative(self.sym_int(value))

    def sym_int(self, value: Any, place: str = "int") -> Any:
        return self._symbolic(value, "integer", "as_int", integer, place)

    def sym_float(self, value: Any) -> Any:
        return self._symbolic(value, "float", "as_float", decimal, "float")

    def sym_bool(self, value: Any) -> Any:
        return self._symbolic(value, "boolean", "as_bool", boolean, "bool")

    def _symbolic(self, value: Any, what: str, fixed: str, read: Callable[[Any], Any], place: str) -> Any:
        kind, content = union(value)
        if kind == fixed:
            return read(content)
        if kind != "as_expr":
            raise DocumentError(f"{kind[:40]!r} is not a kind of symbolic {what}")
        owner = mapping(content)
        hint = owner.get("hint")
        if hint is not None:
            hint = field(owner, "hint", lambda v: field(mapping(v), fixed, read))
        return self._number((place, field(owner, "expr_str", text), None if place == "bool" else hint))

    def _number(self, key: tuple[str, str, Any]) -> Any:
        number = self._numbers.get(key)
        if number is None:
            try:
                number = self._numbers[key] = self.new_number(*key)
            except DocumentError as error:
                raise error.within("expr_str") from None
        return number

    def new_number(self, place: str, written: str, hint: Any) -> Any:
        """Return a number for an expression. `place` is `int`, `offset`, `float` or `bool`."""
        shape = read_shape(written)
        refuse_other_kind(place, is_truth(shape))
        try:
            return shape if isinstance(shape, (bool, int, float)) else shape_text(shape)
        except RecursionError:
            raise DocumentError("an expression that is nested too deeply") from None


def refuse_other_kind(place: str, is_truth: bool) -> None:
    """Raise if an expression is a boolean but a number is expected, or the other way around."""
    if is_truth is not (place == "bool"):
        raise DocumentError("a boolean instead of a number, or a number instead of a boolean")


def _not_negative(number: Any) -> Any:
    if type(number) is int and number < 0:
        raise DocumentError("a negative size, stride or offset")
    return number


def read_dtype(value: Any) -> str:
    code = integer(value)
    if code not in DTYPES:
        raise DocumentError(f"{code} is not the code of a dtype")
    return DTYPES[code]


def read_device(value: Any) -> str:
    owner = mapping(value)
    kind = field(owner, "type", text)
    index = field(owner, "index", lambda v: optional(v, lambda number: integer(number, 0, 127)), None)
    if kind not in DEVICE_TYPES:
        raise DocumentError(f"{kind[:40]!r} is not a device type").within("type")
    return kind if index is None else f"{kind}:{index}"


def read_object(value: Any) -> tuple[str, str]:
    """Return the name and the class of a C++ object that a graph uses."""
    owner = mapping(value)
    name, class_name = field(owner, "name", identifier), field(owner, "class_fqn", text)
    if not _CLASS.fullmatch(class_name):
        raise DocumentError(f"{class_name[:80]!r} is not the name of a C++ class").within("class_fqn")
    return name, class_name


def _refuse_beyond_memory(
    sizes: tuple[Any, ...], strides: tuple[Any, ...], offset: Any, itemsize: int
) -> None:
    count = math.prod(sizes)
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if count else 0
    if max(count, offset + last + 1) * itemsize > MAX_INTEGER:
        raise DocumentError("a tensor larger than any memory")
