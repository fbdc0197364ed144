"""A `type` that returns for a traced value the class that it has at run time. Seen on torch 2.13.

TorchDynamo, which traces the bodies of `torch.cond`, treats it as the built-in one.

Source: `torch/_dynamo/trace_rules.py:is_builtin_callable`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._dynamo import trace_rules
from torch._subclasses.fake_tensor import FakeTensor

_NUMBERS: dict[Any, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def _real_class(value: Any) -> Any:
    found = type(value)
    if issubclass(found, FakeTensor):
        return nn.Parameter if isinstance(value, nn.Parameter) else torch.Tensor
    return RealType if found is type else _NUMBERS.get(found, found)


class _TypeOfTypes(type):
    """Makes `RealType` equal to `type` in all that code can do with it."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not RealType:
            return super().__call__(*args, **kwargs)
        return _real_class(*args) if len(args) == 1 and not kwargs else type(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, type)

    def __subclasscheck__(cls, value: Any) -> bool:
        return issubclass(value, type)

    def __eq__(cls, other: object) -> bool:
        return other is type or other is cls

    def __hash__(cls) -> int:
        return hash(type)

    def __getitem__(cls, item: Any) -> Any:
        return type[item]


class RealType(type, metaclass=_TypeOfTypes):
    """`type`, as files of a model have it during a trace."""


RealType.__name__ = RealType.__qualname__ = "type"
if (_known := getattr(trace_rules, "_builtin_function_ids", None)) is not None:
    _known.add(id(RealType))
