"""Create fake tensors and symbolic numbers from their descriptions in a document."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from fakexport._torch.program_assembly import fake_of, plain_meta
from fakexport._torch.program_schema import DTYPE_CODES, LAYOUT_CODES
from fakexport._torch.symbolic_numbers import SymbolTable
from fakexport.documents import (
    MAX_INTEGER,
    DocumentError,
    boolean,
    decimal,
    field,
    integer,
    items,
    mapping,
    optional,
    text,
    union,
)

from .shape_expression import ShapeExpressions

_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}
_STRIDED = LAYOUT_CODES[torch.strided]
_MAX_RANK = 64
_DEVICE_TYPES = frozenset(
    ("cpu", "cuda", "xpu", "mps", "meta", "hpu", "mtia", "xla", "privateuseone", "maia", "ipu")
)


@dataclass(frozen=True, slots=True, eq=False)
class Description:
    """The checked description of a tensor in a document.

    Args:
        shape_key: Equal for tensors with the same dtype, sizes and strides; None where no size is symbolic.
            It contains symbolic numbers by identity, since comparing them would query the shape environment.
    """

    dtype: torch.dtype
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    device: torch.device
    requires_grad: bool
    shape_key: Hashable | None


class ValueDecoder:
    """Makes the values of one program; equal descriptions are read once.

    Args:
        table: The symbols of the program, and its fake mode.
    """

    def __init__(self, table: SymbolTable) -> None:
        self.table = table
        self._expressions = ShapeExpressions(table.declare)
        self._numbers: dict[tuple[str, str, Any], Any] = {}
        self._devices: dict[tuple[Any, Any], torch.device] = {}
        self._metas: dict[Hashable, torch.Tensor] = {}

    def describe(self, value: Any) -> Description:
        """Check the description of a tensor and declare its symbols, without creating a tensor yet."""
        owner = mapping(value)
        dtype = field(owner, "dtype", read_dtype)
        sizes = tuple(field(owner, "sizes", lambda v: items(v, self.size)))
        strides = tuple(field(owner, "strides", lambda v: items(v, self.size)))
        offset = field(owner, "storage_offset", lambda v: _not_negative(self.sym_int(v, "offset")))
        device = field(owner, "device", self._device)
        requires_grad = field(owner, "requires_grad", boolean)
        if field(owner, "layout", integer) != _STRIDED:
            raise DocumentError("only strided tensors are read").within("layout")
        if len(sizes) != len(strides) or len(sizes) > _MAX_RANK:
            raise DocumentError(f"{len(sizes)} sizes and {len(strides)} strides")
        if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
            raise DocumentError(f"a gradient of {dtype}").within("requires_grad")
        shape_key = None
        numbers = (offset, *sizes, *strides)
        if all(type(number) is int for number in numbers):
            _refuse_beyond_memory(sizes, strides, offset, dtype.itemsize)
        else:
            shape_key = (dtype, *(n if type(n) is int else (id(n),) for n in numbers))
        return Description(dtype, sizes, strides, offset, device, requires_grad, shape_key)

    def tensor(self, description: Description, *, is_own_storage: bool) -> torch.Tensor:
        """Return a new fake tensor.

        Args:
            description: From `describe`.
            is_own_storage: Whether no other value may look at the same (empty) storage. Needed for inputs and
                weights, whose aliasing torch looks at; of inner values with equal symbolic shapes one storage
                does, as torch takes 0.2 ms to make one.
        """
        key = None if is_own_storage else description.shape_key
        meta = None if key is None else self._metas.get(key)
        if meta is None:
            try:
                meta = plain_meta(
                    description.sizes, description.strides, description.offset, description.dtype
                )
            except Exception as error:  # whatever torch finds wrong with these sizes and strides
                raise DocumentError(f"torch cannot create such a tensor: {error}") from error
            if key is not None:
                self._metas[key] = meta
        return fake_of(self.table.mode, meta, description.device, description.requires_grad)

    def size(self, value: Any) -> Any:
        """Return a size or a stride, which is not negative."""
        return _not_negative(self.sym_int(value))

    def are_offsets_alone(self, names: Iterable[str]) -> bool:
        """Return whether these symbols occur only in storage offsets, which no execution needs.

        `while_loop` returns a view of its last result, and no value records how many results there are.
        """
        read = self._expressions.read
        others = (read(written) for place, written, _ in self._numbers if place != "offset")
        used = {symbol.name for expression in others for symbol in expression.free_symbols}
        return used.isdisjoint(names)

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
            kind, written, hint = key
            try:
                number = self._numbers[key] = self._new_number(kind, self._expressions.read(written), hint)
            except DocumentError as error:
                raise error.within("expr_str") from None
            except (
                Exception
            ) as error:  # torch and sympy raise many things for a range or hint that contradicts
                raise DocumentError(f"torch rejects the symbolic number: {error}") from error
        return number

    def _new_number(self, kind: str, expression: Any, hint: Any) -> Any:
        is_truth = getattr(expression, "is_Boolean", False) or getattr(expression, "is_Relational", False)
        if is_truth is not (kind == "bool"):
            raise DocumentError("a boolean where a number is expected, or vice versa")
        if hint is not None and not expression.is_number:
            self.table.remember_hint(expression, hint)
        if kind in ("int", "offset"):
            return self.table.integer(expression, hint)
        return self.table.floating(expression, hint) if kind == "float" else self.table.boolean(expression)

    def _device(self, value: Any) -> torch.device:
        owner = mapping(value)
        key = (owner.get("type"), owner.get("index"))
        try:
            return self._devices[key]
        except (KeyError, TypeError):
            device = read_device(value)
            self._devices[device.type, device.index] = device
            return device


def _not_negative(number: Any) -> Any:
    if type(number) is int and number < 0:
        raise DocumentError("a negative size, stride or offset")
    return number


def read_dtype(value: Any) -> torch.dtype:
    code = integer(value)
    if code not in _DTYPES:
        raise DocumentError(f"{code} is not the code of a dtype")
    return _DTYPES[code]


def read_device(value: Any) -> torch.device:
    owner = mapping(value)
    kind = field(owner, "type", text)
    index = field(owner, "index", lambda v: optional(v, lambda number: integer(number, 0, 127)), None)
    if kind not in _DEVICE_TYPES:
        raise DocumentError(f"{kind[:40]!r} is not a device type").within("type")
    try:
        return torch.device(kind) if index is None else torch.device(kind, index)
    except RuntimeError:
        raise DocumentError(f"this torch has no device type {kind!r}").within("type") from None


def _refuse_beyond_memory(
    sizes: tuple[Any, ...], strides: tuple[Any, ...], offset: Any, itemsize: int
) -> None:
    count = math.prod(sizes)
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if count else 0
    if max(count, offset + last + 1) * itemsize > MAX_INTEGER:
        raise DocumentError("a tensor larger than any memory")
