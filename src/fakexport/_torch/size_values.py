"""What symbolic sizes come to at chosen values of their symbols. Seen on torch 2.11 to 2.13.

Source: `torch/utils/_sympy/interp.py`, `torch/utils/_sympy/reference.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis


def symbols_of(expression: Any) -> frozenset[sympy.Symbol]:
    """Return the symbols of an expression; of an integer, none."""
    return frozenset(getattr(expression, "free_symbols", ()))


def size_value(expression: Any, values: Mapping[sympy.Symbol, int]) -> int:
    """Return the integer that an expression comes to, computed as Python does, without loss."""
    if isinstance(expression, int):
        return expression
    return int(sympy_interp(_Integers, dict(values), expression))


class _Integers(PythonReferenceAnalysis):
    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        return min(a, b)

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        return max(a, b)

    @staticmethod
    def modular_indexing(a: Any, b: Any, c: Any) -> Any:
        return a // b % c

    @staticmethod
    def identity(a: Any) -> Any:
        return a

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        return a if condition else b

    @staticmethod
    def trunc_to_int(a: Any, dtype: torch.dtype) -> Any:
        return int(a)
