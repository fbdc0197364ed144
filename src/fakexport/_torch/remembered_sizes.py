"""A symbolic size that remembers what was computed with it: the same memory is reserved for many copies.

Reserving memory of a symbolic size computes products and asks for signs, each time by way of sympy. Here each
question is answered once. Seen on torch 2.13.

Source: `torch/fx/experimental/sym_node.py:SymNode`,
`aten/src/ATen/EmptyTensor.cpp:empty_strided_symint_meta`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.sym_node import SymNode

# What reserving memory asks of a size.
_ASKED = (
    "add",
    "clone",
    "eq",
    "expect_true",
    "ge",
    "guard_bool",
    "guard_or_false",
    "has_hint",
    "is_bool",
    "is_int",
    "maybe_as_int",
    "mul",
    "sub",
    "wrap_int",
)


class RememberedSize(SymNode):
    """A node of a size, and the answers that it gave, which are nodes of this class too.

    They hold as long as nothing new is learned about the symbols; see `state_of_symbols`.
    """

    _answers: dict[tuple[Any, ...], tuple[Any, Any]]

    @classmethod
    def of(cls, size: torch.SymInt) -> torch.SymInt:
        """Return the same size, with a memory."""
        return torch.SymInt(cls._copy(size.node))

    @classmethod
    def _copy(cls, node: SymNode) -> RememberedSize:
        made = cls.__new__(cls)
        vars(made).update(vars(node))
        made._answers = {}
        return made


def state_of_symbols(size: torch.SymInt) -> tuple[Any, ...]:
    """Return what changes whenever something new is learned about the symbols."""
    environment = size.node.shape_env
    return environment._version_counter, environment._replacements_version_counter


def _same_number(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """Return whether two numbers are written alike. Asking symbols whether they are equal may add a guard."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(a.node.expr == b.node.expr)


def remembered_count(bytes_: int | torch.SymInt, dtype: torch.dtype) -> torch.SymInt | None:
    """Return of how many elements a memory of symbolic size is; None if they do not say how many bytes."""
    count = bytes_ // dtype.itemsize
    if not isinstance(count, torch.SymInt) or not _same_number(count * dtype.itemsize, bytes_):
        return None
    return RememberedSize.of(count)


def _remembering(name: str) -> Callable[..., Any]:
    stock = getattr(SymNode, name)

    def answer(node: RememberedSize, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            return stock(node, *args, **kwargs)
        # A node by its identity: it is kept, as part of the answer.
        key = (name, *(id(arg) if isinstance(arg, SymNode) else (type(arg), arg) for arg in args))
        known = node._answers.get(key)
        if known is None:
            found = stock(node, *args)
            if type(found) is SymNode:
                found = RememberedSize._copy(found)
            known = node._answers[key] = found, args
        return known[0]

    return answer


for _name in _ASKED:
    setattr(RememberedSize, _name, _remembering(_name))
