"""What the nodes of a program multiply: floating-point operations, as expressions over its symbols."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.fx import Node

from fakexport._torch.fake_tensors import FakeTensorMode, mode_of
from fakexport._torch.operator_effects import effects_of
from fakexport._torch.operator_flops import Product, call_products, has_formula
from fakexport._torch.operator_memory import is_composite, tensors_in
from fakexport._torch.operator_registry import TORCH_NAMESPACES, OpOverload
from fakexport._torch.symbolic_numbers import without_new_guards
from fakexport.memory import run_on_fakes, value_key, values_of
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
        """Return what a node multiplies, or `()`; `casts` are the arguments of the autocast around it."""
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
        result = node.meta.get("val")
        found, reason = run_on_fakes(
            lambda: call_products(mode, node.target, args, kwargs, result),
            lambda made: not _has_lost_symbols(made, result),
            casts,
        )
        if not found:
            self.uncounted[operator_name(node)] = _REASON if found is not None else reason
        return found or ()


def _has_lost_symbols(found: Sequence[Product], result: Any) -> bool:
    """Return whether a result has symbolic sizes and the number of operations has not."""
    is_symbolic = any(isinstance(tensor.numel(), torch.SymInt) for tensor in tensors_in(result))
    return is_symbolic and any(isinstance(p.flops, int) and p.flops > 0 for p in found)
