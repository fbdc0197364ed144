"""What a call can observe of plain values, sizes and tensors, as tokens that compare."""

from __future__ import annotations

import enum
import logging
import re
import types
from typing import Any

import torch

from fakexport._torch.fake_tensors import storage_identity
from fakexport._torch.observed_tensors import (
    OPERATORS,
    numbers_of,
    proxy_of,
    source_of,
    tensor_facts,
    thunk_of,
    why_not_observable,
)

VALUES = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
CONSTANTS = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.finfo,
    torch.iinfo,
    re.Pattern,
    logging.Logger,
    *OPERATORS,
    types.CodeType,
    range,
    enum.Enum,
)
BUILT_IN = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)


class NotComparable(Exception):
    """Something is reachable of which not everything can be told."""


def plain_token(value: Any) -> tuple[type, Any]:
    """Return what to compare of a plain value: 0.0 and -0.0 are two, and so are 1, 1.0 and True."""
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


class TensorTokens:
    """Tokens of sizes and tensors, which have numbers of their own.

    Args:
        tracer: The tracer of the export.
    """

    def __init__(self, tracer: Any) -> None:
        self.tokens: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[Any] = []
        self.memo: dict[int, int] = {}
        self.kept: list[Any] = []
        self._tracer = tracer
        self._sources: dict[int, int] = {}

    def visit_number(self, number: Any) -> None:
        node = number.node
        at = self.memo.get(id(node))
        if at is not None:
            self.tokens.append(("size again", at))
            return
        self.memo[id(node)] = len(self.memo)
        self.kept.append(node)
        thunk = thunk_of(self._tracer, number)
        if thunk is None:
            raise NotComparable("a size that the trace does not know")
        source = source_of(thunk)
        at_node = None if source is None else self._number_of_source(source)
        self.tokens.append((type(number), str(node.expr), thunk.f is None, at_node))
        self.numbers.append(number)

    def _number_of_source(self, node: Any) -> tuple[str, int]:
        """Number the nodes of sizes on their own: which sizes have one changes while a block is traced."""
        at = self.memo.get(id(node))
        if at is not None:
            return "tensor", at
        self.kept.append(node)
        return "source", self._sources.setdefault(id(node), len(self._sources))

    def _number_of(self, item: Any) -> tuple[str, int]:
        at = self.memo.get(id(item))
        if at is not None:
            return "again", at
        self.memo[id(item)] = len(self.memo)
        self.kept.append(item)
        return "new", self.memo[id(item)]

    def visit_tensor(self, tensor: torch.Tensor) -> None:
        reason = why_not_observable(tensor)
        if reason is not None:
            raise NotComparable(reason)
        proxy = proxy_of(self._tracer, tensor)
        if proxy is None:
            raise NotComparable("a tensor that the trace does not know")
        if proxy.constant is not None:
            raise NotComparable("a tensor with a known value")
        memory = storage_identity(tensor)
        self.tensors.append(tensor)
        sizes = numbers_of(tensor)
        self.tokens.append(tensor_facts(tensor))
        self.tokens.append(("memory", self._number_of_memory(memory), self._number_of(proxy.proxy.node)))
        if (asked := self._sources.get(id(proxy.proxy.node))) is not None:
            self.tokens.append((torch.SymInt, "asked", asked, None))
        bytes_ = sizes[-1]
        for size in sizes[:-1]:
            if isinstance(size, torch.SymInt):
                if thunk_of(self._tracer, size) is None:
                    self.tokens.append(str(size.node.expr))
                else:
                    self.visit_number(size)
            else:
                self.tokens.append(size)
        self.tokens.append(str(bytes_))

    def _number_of_memory(self, memory: int) -> tuple[str, int]:
        key = -memory
        at = self.memo.get(key)
        if at is not None:
            return "again", at
        self.memo[key] = len(self.memo)
        return "new", self.memo[key]
