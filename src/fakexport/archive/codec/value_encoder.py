"""Encode what a program records of its values as JSON: tensors without data, symbolic numbers."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch
from sympy.printing.repr import ReprPrinter

from fakexport._torch.program_schema import DTYPE_CODES, LAYOUT_CODES
from fakexport._torch.symbolic_numbers import assumptions_of, expression_of, hint_of
from fakexport.error import InvalidValue

Json = dict[str, Any]


class ValueEncoder:
    """Encodes the metadata of values; prints each distinct expression once, as it is slow to print.

    Equal parts are the same object in the result.
    """

    def __init__(self) -> None:
        self._integers: dict[Any, Json] = {}
        self._texts: dict[Any, str] = {}
        self._fixed: dict[int, Json] = {}
        self._devices: dict[torch.device, Json] = {}

    def tensor(self, value: torch.Tensor) -> Json:
        if value.layout is not torch.strided:
            kind = str(value.layout).removeprefix("torch.")
            raise InvalidValue(f"a tensor of layout {kind} cannot be stored; only strided ones can")
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
        expression = expression_of(value)
        found = self._integers.get(expression)
        if found is None:
            found = self._integers[expression] = self._new_integer(value, expression)
        return found

    def _new_integer(self, value: torch.SymInt, expression: Any) -> Json:
        if isinstance(expression, (int, sympy.Integer)):
            return {"as_int": int(expression)}
        hint = hint_of(value)
        return self._expression(expression, None if hint is None else {"as_int": int(hint)})

    def floating(self, value: float | torch.SymFloat) -> Json:
        if not isinstance(value, torch.SymFloat):
            return {"as_float": float_json(float(value))}
        expression = expression_of(value)
        if isinstance(expression, (float, sympy.Float)):
            return {"as_float": float_json(float(expression))}
        hint = hint_of(value)
        return self._expression(expression, None if hint is None else {"as_float": float_json(float(hint))})

    def boolean(self, value: bool | torch.SymBool) -> Json:
        if not isinstance(value, torch.SymBool):
            return {"as_bool": value}
        expression = expression_of(value)
        if expression in (True, False):
            return {"as_bool": bool(expression)}
        return self._expression(expression, None)

    def _expression(self, expression: Any, hint: Json | None) -> Json:
        text = self._texts.get(expression)
        if text is None:
            text = self._texts[expression] = _Text().doprint(expression)
        return {"as_expr": {"expr_str": text, "hint": hint}}


class _Text(ReprPrinter):  # type: ignore[misc]  # sympy has no types.
    """Writes equal expressions alike, as `sympy.srepr` writes those of torch."""

    def _print_Symbol(self, symbol: sympy.Symbol) -> str:  # noqa: N802  # The name that sympy looks up.
        given = (f"{name}={value}" for name, value in assumptions_of(symbol).items())
        return f"Symbol({', '.join((repr(symbol.name), *given))})"


def device_json(device: torch.device) -> Json:
    return {"type": device.type, "index": device.index}


def dtype_json(dtype: torch.dtype) -> int:
    """Return the code that torch's format has for a dtype.

    Raises:
        InvalidValue: It has none.
    """
    if dtype not in DTYPE_CODES:
        raise InvalidValue(f"torch's format does not support tensors of {dtype}")
    return DTYPE_CODES[dtype]


def integer_json(value: int) -> int:
    """Return an integer as torch's format has it.

    Raises:
        InvalidValue: It has more than 64 bits.
    """
    if not -(2**63) <= value < 2**63:
        raise InvalidValue(f"the integer {str(value)[:40]} has more than 64 bits")
    return value


def float_json(value: float) -> float | str:
    """Return a float as torch's format has it: what JSON cannot say is a string."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
