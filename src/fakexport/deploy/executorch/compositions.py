"""Operators without a kernel in ExecuTorch 1.5, made of those that have one."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import Any, cast

import torch
from torch.fx import Node

from fakexport._torch.grouped_products import TORCHS, TRANSFORMERS
from fakexport._torch.mxfp4_products import PACKED

from ..composed_program import Composition, Compositions, grouped_product, packed_product


def _empty(node: Node) -> Composition | None:
    """Zeros are as good as any values."""
    (source, *others) = node.args
    assert isinstance(source, Node)
    return None if others else Composition((source,), partial(cast(Any, torch.zeros_like), **node.kwargs))


def _sort(node: Node) -> Composition | None:
    """One dimension in ascending order, where the order of equals is free."""
    (source, *others) = node.args
    assert isinstance(source, Node)
    is_plain = others in ([], [-1], [0], [-1, False], [0, False]) and not node.kwargs
    return Composition((source,), _sorted) if is_plain and source.meta["val"].dim() == 1 else None


def _sorted(values: torch.Tensor) -> Any:
    return tuple(torch.topk(values, values.shape[0], dim=-1, largest=False, sorted=True))


def _histogram(node: Node) -> Composition | None:
    """Whole numbers from 0, each in a bin of its own: how experts count their tokens."""
    source, bins, lowest, highest = (*node.args, None, None, None)[:4]
    if node.kwargs or not isinstance(source, Node) or not isinstance(bins, int):
        return None
    cast = source.args[0] if source.target is torch.ops.aten.to.dtype else None
    is_whole = isinstance(cast, Node) and not cast.meta["val"].dtype.is_floating_point
    if not is_whole or (lowest, highest) != (0, bins - 1):
        return None

    def counted(numbers: torch.Tensor) -> torch.Tensor:
        own = torch.arange(bins, dtype=numbers.dtype, device=numbers.device)
        return (numbers[:, None] == own).sum(dim=0).to(numbers.dtype)

    return Composition((source,), counted)


WITHOUT_KERNEL: Compositions = MappingProxyType(
    {
        "aten.empty_like.default": _empty,
        "aten.histc.default": _histogram,
        "aten.sort.default": _sort,
        TORCHS: grouped_product,
        TRANSFORMERS: grouped_product,
        PACKED: packed_product,
    }
)
