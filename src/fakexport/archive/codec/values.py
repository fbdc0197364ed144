"""Encode and decode the values of a program: tensors without data, and symbolic numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom
from sympy.printing.repr import ReprPrinter

from fakexport._torch.tracing.program_assembly import fake_of, plain_meta
from fakexport._torch.tracing.program_schema import LAYOUT_CODES
from fakexport._torch.tracing.symbolic_numbers import SymbolTable, assumptions_of, expression_of, hint_of
from fakexport.archive.codec.shape_expression import ShapeExpressions
from fakexport.error import InvalidValue
from fakexport.files.documents import DocumentError

from .value_reader import DTYPES, Description, ValueReader, refuse_other_kind
from .value_reader import read_device as read_device_name
from .value_reader import read_dtype as read_dtype_name

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


_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES.values()}
_CODES = {_DTYPES[name]: code for code, name in DTYPES.items()}


def dtype_json(dtype: torch.dtype) -> int:
    if dtype not in _CODES:
        raise InvalidValue(f"torch's format does not support tensors of {dtype}")
    return _CODES[dtype]


def integer_json(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise InvalidValue(f"the integer {str(value)[:40]} has more than 64 bits")
    return value


def float_json(value: float) -> float | str:
    """Encode a float for torch's format. Infinity and NaN become strings, because JSON lacks them."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


_device = cache(torch.device)


class ValueDecoder(ValueReader):
    """Create the values of one program. Equal descriptions are decoded once.

    Args:
        table: The symbols of the program, and its fake mode.
    """

    def __init__(self, table: SymbolTable) -> None:
        super().__init__()
        self.table = table
        self._expressions = ShapeExpressions(table.declare)
        self._metas: dict[Hashable, torch.Tensor] = {}

    def tensor(self, description: Description, *, is_own_storage: bool) -> torch.Tensor:
        """Return a new fake tensor.

        Inputs and weights need a separate (empty) storage, because torch checks their aliasing. Other values
        with equal symbolic shapes share a storage, because creating one takes 0.2 ms.
        """
        key = None if is_own_storage else _shape_key(description)
        meta = None if key is None else self._metas.get(key)
        if meta is None:
            try:
                meta = plain_meta(
                    description.sizes, description.strides, description.offset, _DTYPES[description.dtype]
                )
            except Exception as error:  # any torch error about these sizes and strides
                raise DocumentError(f"torch cannot create such a tensor: {error}") from error
            if key is not None:
                self._metas[key] = meta
        return fake_of(self.table.mode, meta, _device(description.device), description.requires_grad)

    def are_offsets_alone(self, names: Iterable[str]) -> bool:
        """Return whether these symbols occur only in storage offsets, so that a run does not need them.

        For example, `while_loop` returns a view of its last result, with such a symbol in its storage offset.
        """
        read = self._expressions.read
        others = (read(written) for place, written, _ in self._numbers if place != "offset")
        used = {symbol.name for expression in others for symbol in expression.free_symbols}
        return used.isdisjoint(names)

    def new_number(self, place: str, written: str, hint: Any) -> Any:
        expression = self._expressions.read(written)
        is_truth = getattr(expression, "is_Boolean", False) or getattr(expression, "is_Relational", False)
        refuse_other_kind(place, is_truth)
        try:
            if hint is not None and not expression.is_number:
                self.table.remember_hint(expression, hint)
            if place in ("int", "offset"):
                return self.table.integer(expression, hint)
            if place == "float":
                return self.table.floating(expression, hint)
            return self.table.boolean(expression)
        except Exception as error:  # torch and sympy raise various types for a contradictory range or hint
            raise DocumentError(f"torch rejects the symbolic number: {error}") from error


def _shape_key(description: Description) -> Hashable | None:
    """Return a key that is equal for tensors with the same dtype, offset, sizes and strides.

    None if all of these numbers are static. Symbolic numbers are compared by identity, because comparing
    their values would query the shape environment.
    """
    numbers = (description.offset, *description.sizes, *description.strides)
    if all(type(number) is int for number in numbers):
        return None
    return (description.dtype, *(n if type(n) is int else (id(n),) for n in numbers))


def read_dtype(value: Any) -> torch.dtype:
    return _DTYPES[read_dtype_name(value)]


def read_device(value: Any) -> torch.device:
    return _device(read_device_name(value))
