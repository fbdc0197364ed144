"""Compare the metadata of fake values, either directly (ignoring devices) or by keys (including devices)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from fakexport._torch.emulation.fake_tensors import FakeTensor
from fakexport._torch.tracing.symbolic_numbers import expression_of, has_unbacked_symbols, noted_expression_of

NO_KEY = object()
"""Returned instead of a key for values that cannot have a key."""

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class ValueKeys:
    """Computes keys for arguments of calls. Calls with equal keys have results with equal metadata."""

    def __init__(self) -> None:
        self._of_node: dict[Node, tuple[Any, Any]] = {}

    def of(self, arguments: Any, values: Mapping[Node, Any]) -> Any:
        """Return a key for nested arguments, or NO_KEY, for example if a tensor has known data or no strides.

        Args:
            arguments: The arguments, with nodes instead of their values.
            values: The values of the nodes.
        """
        if isinstance(arguments, Node):
            return self._node(arguments, values[arguments])
        if isinstance(arguments, (tuple, list)):
            return _joined([self.of(item, values) for item in arguments])
        if isinstance(arguments, dict):
            return _joined([(name, self.of(item, values)) for name, item in arguments.items()])
        return _of_value(arguments)

    def _node(self, node: Node, value: Any) -> Any:
        known = self._of_node.get(node)
        if known is None or known[0] is not value:
            known = self._of_node[node] = value, _of_value(value)
        return known[1]


def _of_value(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return _of_tensor(value)
    if isinstance(value, _SYMBOLIC):
        return type(value), noted_expression_of(value)
    if isinstance(value, (*_PLAIN, torch.memory_format)):
        return type(value), value
    if isinstance(value, (tuple, list)):
        return _joined([_of_value(item) for item in value])
    return NO_KEY


def _of_tensor(tensor: FakeTensor) -> Any:
    if tensor.constant is not None or tensor.layout is not torch.strided:
        return NO_KEY
    sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    numbers = tuple(size if isinstance(size, int) else noted_expression_of(size) for size in sizes)
    return tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg(), numbers


def _joined(parts: list[Any]) -> Any:
    if any(part is NO_KEY or (isinstance(part, tuple) and part and part[-1] is NO_KEY) for part in parts):
        return NO_KEY
    return tuple(parts)


def value_difference(old: FakeTensor, new: FakeTensor) -> tuple[str, str, str] | None:
    """Return the first difference other than the device as (field, old text, new text), or None.

    If sizes are data-dependent, only the number of dimensions is compared: each run creates new symbols.
    """
    if old.dtype != new.dtype:
        return "dtype", str(old.dtype), str(new.dtype)
    if old.layout != new.layout or old.dim() != new.dim():
        return "shape", str(list(old.shape)), str(list(new.shape))
    if old.layout is not torch.strided:
        return None
    for name, before, after in (
        ("shape", old.shape, new.shape),
        ("stride", old.stride(), new.stride()),
        ("storage_offset", (old.storage_offset(),), (new.storage_offset(),)),
    ):
        for a, b in zip(before, after, strict=True):
            if not _is_same_size(a, b):
                return name, str(list(before)), str(list(after))
    return None


def _is_same_size(a: Any, b: Any) -> bool:
    if type(a) is int and type(b) is int:
        return a == b
    if has_unbacked_symbols(a) or has_unbacked_symbols(b):
        return True
    if all(type(size) is not int for size in (a, b)) and noted_expression_of(a) == noted_expression_of(b):
        return True
    first, second = (size if type(size) is int else expression_of(size) for size in (a, b))
    return bool(first == second)
