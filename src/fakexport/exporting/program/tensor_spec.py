"""Metadata of tensors, with sizes as text, and ranges of symbolic sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from fakexport._torch.tracing.symbolic_numbers import assumptions_of
from fakexport.exporting.interface import SymbolRange

_LETTERS = re.compile(r"[A-Za-z_]*")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Metadata of one tensor.

    Args:
        dtype: Name of the dtype without `torch.`: `bfloat16`.
        shape: Sizes as text: `("s0", "128")`. A symbolic size is an expression over symbols.
        stride: Strides as text. Empty for layouts without strides.
        device: Name of the device, such as `cuda:0`.
    """

    dtype: str
    shape: tuple[str, ...]
    stride: tuple[str, ...]
    device: str

    def changes_to(self, other: TensorSpec) -> Iterator[tuple[str, str, str]]:
        """Yield (field, own text, other text) for each difference. Devices are not compared."""
        if self.dtype != other.dtype:
            yield "dtype", self.dtype, other.dtype
        if self.shape != other.shape:
            yield "shape", f"[{', '.join(self.shape)}]", f"[{', '.join(other.shape)}]"
        elif self.stride != other.stride:
            yield "stride", f"({', '.join(self.stride)})", f"({', '.join(other.stride)})"


class Spelling:
    """Format sizes as text. Each distinct expression is formatted only once, because sympy's printer is slow.

    Args:
        is_canonical: Whether to number symbols by first use (`s0`, `s1`, `u0`). torch's names (`s77`) depend
            on how the program was exported.
    """

    def __init__(self, *, is_canonical: bool = False) -> None:
        self._is_canonical = is_canonical
        self._texts: dict[Any, str] = {}
        self._symbols: dict[sympy.Symbol, sympy.Symbol] = {}

    def size(self, value: Any) -> str:
        """Return the text of a number or of a symbolic number."""
        expression = getattr(getattr(value, "node", None), "expr", None)
        return str(value) if expression is None else self.expression(expression)

    def expression(self, expression: Any) -> str:
        """Return the text of a sympy expression, such as a key of `range_constraints`."""
        text = self._texts.get(expression)
        if text is None:
            text = str(self._canonical(expression) if self._is_canonical else expression)
            self._texts[expression] = text
        return text

    def tensor(self, value: torch.Tensor) -> TensorSpec:
        """Return the metadata of a tensor, fake or real."""
        strides = value.stride() if value.layout is torch.strided else ()
        return TensorSpec(
            dtype=plain_name(value.dtype),
            shape=tuple(self.size(size) for size in value.shape),
            stride=tuple(self.size(stride) for stride in strides),
            device=str(value.device),
        )

    def _canonical(self, expression: Any) -> Any:
        for symbol in sorted(expression.free_symbols - self._symbols.keys(), key=lambda symbol: symbol.name):
            family = _letters(symbol.name)
            number = sum(1 for known in self._symbols if _letters(known.name) == family)
            self._symbols[symbol] = sympy.Symbol(f"{family}{number}", **assumptions_of(symbol))
        # torch does not simplify `Min(32, 32*s0)` while tracing, but evaluates it when a program is loaded.
        return expression.xreplace(self._symbols).replace(
            lambda part: type(part).__name__ in ("Min", "Max"),
            lambda part: getattr(sympy, type(part).__name__)(*part.args),
        )


def _letters(name: str) -> str:
    match = _LETTERS.match(name)
    return match[0] if match else ""


def plain_name(torch_constant: Any) -> str:
    """Return the name of a torch constant (dtype, layout, memory format) without `torch.`."""
    return str(torch_constant).removeprefix("torch.")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a node's `val`, which may be nested in tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def symbol_ranges(program: ExportedProgram, spelling: Spelling) -> dict[str, SymbolRange]:
    """Return the program's range constraints by the name of the symbol, sorted."""
    ranges = {
        spelling.expression(symbol): SymbolRange(_finite(bounds.lower), _finite(bounds.upper))
        for symbol, bounds in program.range_constraints.items()
    }
    return dict(sorted(ranges.items()))


def _finite(bound: Any) -> int | None:
    return int(bound) if isinstance(bound, int) or getattr(bound, "is_Integer", False) else None
