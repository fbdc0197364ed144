"""Encode and decode the values of a program: tensors without data, and symbolic numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom
from sympy.printing.repr import ReprPrinter

from fakexport._torch.tracing.program_assembly import fake_of, plain_meta
from fakexport._torch.tracing.program_schema import DTYPE_CODES, LAYOUT_CODES
from fakexport._torch.tracing.symbolic_numbers import SymbolTable, assumptions_of, expression_of, hint_of
from fakexport.archive.codec.shape_expression import ShapeExpressions
from fakexport.error import InvalidValue
from fakexport.files.documents import (
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

Json = dict[str, Any]


_PLAIN: dict[str, tuple[type, ...]] = {
    "as_int": (int, sympy.Integer),
    "as_float": (float, sympy.Float),
    "as_bool": (bool, BooleanAtom),
}


class ValueEncoder:
    """Encode the metadata of values. Each distinct expression is printed once, because printing is slow.

    Equal parts of the result are the same object.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, Any], Json] = {}
        self._texts: dict[Any, str] = {}
        self._fixed: dict[int, Json] = {}
        self._devices: dict[torch.device, Json] = {}

    def tensor(self, value: torch.Tensor) -> Json:
        if value.layout is not torch.strided:
            kind = str(value.layout).removeprefix("torch.")
            raise InvalidValue(f"a tensor of layout {kind} cannot be stored; only strided tensors can")
        dtype = dtype_json(value.dtype)
        device = value.device
        if device not in self._devices:
            self._devices[device] = device_json(device)
        return {
            "dtype": dtype,
            "sizes": [self.integer(size) for size in value.shape],
            "requires_grad": value.requires_grad,
            "device": self._devices[device],
            "strides": [self.integer(stride) for stride in value.stride()],
            "storage_offset": self.integer(value.storage_offset()),
            "layout": LAYOUT_CODES[value.layout],
        }

    def integer(self, value: int | torch.SymInt) -> Json:
        if type(value) is int:
            known = self._fixed.get(value)
            if known is None:
                known = self._fixed[value] = {"as_int": value}
            return known
        if not isinstance(value, torch.SymInt):
            return {"as_int": int(value)}
        return self._symbolic(value, "as_int", int)

    def floating(self, value: float | torch.SymFloat) -> Json:
        if not isinstance(value, torch.SymFloat):
            return {"as_float": float_json(float(value))}
        return self._symbolic(value, "as_float", lambda number: float_json(float(number)))

    def boolean(self, value: bool | torch.SymBool) -> Json:
        return (
            self._symbolic(value, "as_bool", bool) if isinstance(value, torch.SymBool) else {"as_bool": value}
        )

    def _symbolic(self, value: Any, kind: str, plain: Callable[[Any], Any]) -> Json:
        expression = expression_of(value)
        key = kind, expression
        if key not in self._known:
            if isinstance(expression, _PLAIN[kind]):
                self._known[key] = {kind: plain(expression)}
            else:
                hint = None if kind == "as_bool" else hint_of(value)
                written = {
                    "expr_str": self._text(expression),
                    "hint": None if hint is None else {kind: plain(hint)},
                }
                self._known[key] = {"as_expr": written}
        return self._known[key]

    def _text(self, expression: Any) -> str:
        if expression not in self._texts:
            self._texts[expression] = _Text().doprint(expression)
        return self._texts[expression]


class _Text(ReprPrinter):  # type: ignore[misc]  # sympy has no types.
    """Print torch expressions as `sympy.srepr` does. Equal expressions get the same text."""

    def _print_Symbol(self, symbol: sympy.Symbol) -> str:  # noqa: N802  # The name that sympy looks up.
        given = (f"{name}={value}" for name, value in assumptions_of(symbol).items())
        return f"Symbol({', '.join((repr(symbol.name), *given))})"


def device_json(device: torch.device) -> Json:
    return {"type": device.type, "index": device.index}


def dtype_json(dtype: torch.dtype) -> int:
    if dtype not in DTYPE_CODES:
        raise InvalidValue(f"torch's format does not support tensors of {dtype}")
    return DTYPE_CODES[dtype]


def integer_json(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise InvalidValue(f"the integer {str(value)[:40]} has more than 64 bits")
    return value


def float_json(value: float) -> float | str:
    """Encode a float for torch's format. Infinity and NaN become strings, because JSON lacks them."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}
_STRIDED = LAYOUT_CODES[torch.strided]
_MAX_RANK = 64
_DEVICE_TYPES = frozenset(
    ("cpu", "cuda", "xpu", "mps", "meta", "hpu", "mtia", "xla", "privateuseone", "maia", "ipu")
)


@dataclass(frozen=True, slots=True, eq=False)
class Description:
    """The validated description of a tensor in a document.

    Args:
        shape_key: Key that is equal for tensors with the same dtype, offset, sizes and strides; None if all
            of these numbers are static. Symbolic numbers are compared by identity, because comparing their
            values would query the shape environment.
    """

    dtype: torch.dtype
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    device: torch.device
    requires_grad: bool
    shape_key: Hashable | None


class ValueDecoder:
    """Create the values of one program. Equal descriptions are decoded once.

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
        """Check the description of a tensor and declare its symbols, without creating a tensor."""
        owner = mapping(value)
        dtype = field(owner, "dtype", read_dtype)
        sizes = tuple(field(owner, "sizes", lambda v: items(v, self.size)))
        strides = tuple(field(owner, "strides", lambda v: items(v, self.size)))
        offset = field(owner, "storage_offset", lambda v: _not_negative(self.sym_int(v, "offset")))
        device = field(owner, "device", self._device)
        requires_grad = field(owner, "requires_grad", boolean)
        if field(owner, "layout", integer) != _STRIDED:
            raise DocumentError("only strided tensors are supported").within("layout")
        if len(sizes) != len(strides) or len(sizes) > _MAX_RANK:
            raise DocumentError(f"{len(sizes)} sizes but {len(strides)} strides")
        if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
            raise DocumentError(f"{dtype} tensors cannot require gradients").within("requires_grad")
        shape_key = None
        numbers = (offset, *sizes, *strides)
        if all(type(number) is int for number in numbers):
            _refuse_beyond_memory(sizes, strides, offset, dtype.itemsize)
        else:
            shape_key = (dtype, *(n if type(n) is int else (id(n),) for n in numbers))
        return Description(dtype, sizes, strides, offset, device, requires_grad, shape_key)

    def tensor(self, description: Description, *, is_own_storage: bool) -> torch.Tensor:
        """Return a new fake tensor.

        Inputs and weights need a separate (empty) storage, because torch checks their aliasing. Other values
        with equal symbolic shapes share a storage, because creating one takes 0.2 ms.
        """
        key = None if is_own_storage else description.shape_key
        meta = None if key is None else self._metas.get(key)
        if meta is None:
            try:
                meta = plain_meta(
                    description.sizes, description.strides, description.offset, description.dtype
                )
            except Exception as error:  # any torch error about these sizes and strides
                raise DocumentError(f"torch cannot create such a tensor: {error}") from error
            if key is not None:
                self._metas[key] = meta
        return fake_of(self.table.mode, meta, description.device, description.requires_grad)

    def size(self, value: Any) -> Any:
        """Return a size or a stride, which must not be negative."""
        return _not_negative(self.sym_int(value))

    def are_offsets_alone(self, names: Iterable[str]) -> bool:
        """Return whether these symbols occur only in storage offsets, so that a run does not need them.

        For example, `while_loop` returns a view of its last result, with such a symbol in its storage offset.
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
            ) as error:  # torch and sympy raise various exceptions for a contradictory range or hint
                raise DocumentError(f"torch rejects the symbolic number: {error}") from error
        return number

    def _new_number(self, kind: str, expression: Any, hint: Any) -> Any:
        is_truth = getattr(expression, "is_Boolean", False) or getattr(expression, "is_Relational", False)
        if is_truth is not (kind == "bool"):
            raise DocumentError("a boolean instead of a number, or a number instead of a boolean")
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
        raise DocumentError(f"this torch version does not have the device type {kind!r}").within(
            "type"
        ) from None


def _refuse_beyond_memory(
    sizes: tuple[Any, ...], strides: tuple[Any, ...], offset: Any, itemsize: int
) -> None:
    count = math.prod(sizes)
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if count else 0
    if max(count, offset + last + 1) * itemsize > MAX_INTEGER:
        raise DocumentError("a tensor larger than any memory")
