"""What the nodes of a program multiply: floating-point operations, as expressions over its symbols."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.fx import Node

from fakexport._torch.fake_tensors import FakeTensorMode, mode_of
from fakexport._torch.operator_effects import effects_of
from fakexport._torch.operator_flops import Product, call_products, has_formula
from fakexport._torch.operator_memory import is_composite, tensors_in
from fakexport._torch.operator_registry import TORCH_NAMESPACES, OpOverload
from fakexport._torch.python_kernels import python_kernels
from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._torch.symbolic_numbers import without_new_guards
from fakexport.error import type_and_line
from fakexport.memory import value_key, values_of
from fakexport.program import operator_name

# Operators of these names multiply; of others torch has no formula either.
_MULTIPLIES = re.compile(
    r"(?:.*_)?(?:linear|matmul|\w*mm|\w*mv|conv\w*|einsum|tensordot|bilinear|\w*attention|lstm|gru|rnn|\w*dot"
    r"|inner|cdist|linalg|fft)(?:_.*|\d.*)?"
)
_REASON = "torch has no formula for it"


class NodeProducts:
    """Answers for the nodes of one program; calls that are alike are looked at once."""

    def __init__(self) -> None:
        self.uncounted: dict[str, str] = {}
        """Operators that multiply and are counted as 0, and why."""
        self._known: dict[Hashable, tuple[Product, ...]] = {}

    def of(self, node: Node, casts: Sequence[Any] | None) -> tuple[Product, ...]:
        """Return what a node multiplies, `()` where it does not.

        Args:
            node: A call of an operator.
            casts: Arguments of the `torch.autocast` around it, or None.
        """
        operator = node.target
        if not has_formula(operator) and not self._is_product(node):
            return ()
        args, kwargs = values_of(node)
        named = tuple([(name, value_key(value)) for name, value in kwargs.items()])
        key = (operator, tuple(casts or ()), value_key(args), named)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._looked_at(node, casts)
        return found

    def _is_product(self, node: Node) -> bool:
        """Return whether a node may be made of products; note one whose products are not known."""
        operator = node.target
        if not isinstance(operator, OpOverload):
            return False
        namespace, _, name = operator.name().partition(".")[0].partition("::")
        is_own = namespace in TORCH_NAMESPACES
        if is_own and (name.startswith("upsample") or not _MULTIPLIES.fullmatch(name)):
            return False
        if is_own and is_composite(operator) and not effects_of(operator).writes:
            return True
        self.uncounted[operator_name(node)] = _REASON
        return False

    def _looked_at(self, node: Node, casts: Sequence[Any] | None) -> tuple[Product, ...]:
        args, kwargs = values_of(node)
        mode = mode_of(tensors_in((args, kwargs)))
        if mode is None:
            return ()
        environment = mode.shape_env
        with nullcontext() if environment is None else without_new_guards(environment):
            return self._run(mode, node, args, kwargs, casts)

    def _run(
        self, mode: FakeTensorMode, node: Node, args: Any, kwargs: Any, casts: Sequence[Any] | None
    ) -> tuple[Product, ...]:
        """Return the products of a call; as for memory, torch's kernels in Python if others lose symbols."""
        result = node.meta.get("val")
        reason = ""
        for kernels in (nullcontext, python_kernels):
            try:
                with kernels(), torch_logs_silenced(), _casting(casts):
                    found = call_products(mode, node.target, args, kwargs, result)
            except Exception as error:  # A kernel that fakes lack, a size that only running tells.
                reason = type_and_line(error)
            else:
                if not _has_lost_symbols(found, result):
                    if not found:
                        self.uncounted[operator_name(node)] = _REASON
                    return found
                reason = "on fakes it forgets symbolic sizes"
        self.uncounted[operator_name(node)] = reason
        return ()


def _casting(casts: Sequence[Any] | None) -> AbstractContextManager[object]:
    return nullcontext() if casts is None else torch.autocast(*casts)


def _has_lost_symbols(found: Sequence[Product], result: Any) -> bool:
    """Return whether a result has symbolic sizes and the number of operations has not."""
    is_symbolic = any(isinstance(tensor.numel(), torch.SymInt) for tensor in tensors_in(result))
    return is_symbolic and any(isinstance(p.flops, int) and p.flops > 0 for p in found)
