"""Grouped matrix products, as used by mixtures of experts: each group of rows has its own matrix.

The meta kernel of `aten._grouped_mm` only supports bfloat16 (torch 2.13). For other dtypes, transformers
traces its own Python operator, `transformers::grouped_mm_fallback` (transformers/integrations/moe.py, 5.23).
This module handles both. The arguments are the rows `[S, K]` sorted by group, the matrices `[G, K, N]`, and
the end of each group's rows, `[G]`. The result is `[S, N]`.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any, cast

import torch
from torch.fx import Node

from fakexport._torch.operators.operator_registry import register_operator

TORCHS = "aten._grouped_mm.default"
TRANSFORMERS = "transformers.grouped_mm_fallback.default"
_NAME, _MODULE = "transformers::grouped_mm_fallback", "transformers.integrations.moe"


def register_grouped_product() -> None:
    """Register the transformers operator if it is missing.

    If transformers is installed, import the module that registers the operator. Otherwise, register an
    equivalent operator. Two libraries cannot define the same operator, so fakexport must not define it if
    transformers can be imported.
    """
    with suppress(ImportError):
        importlib.import_module(_MODULE)
        return
    register_operator(
        _NAME,
        "(Tensor input, Tensor weight, Tensor offs) -> Tensor",
        _product,
        lambda input, weight, offs: input.new_empty(input.shape[0], weight.shape[2]),
    )


def product_arguments(node: Node) -> tuple[Node, Node, Node] | None:
    """Return the arguments of a node that is a grouped product: rows, matrices, group ends.

    Return None for other nodes, and for torch's operator with batched matrices or a bias.
    """
    more = [value for value in node.kwargs.values() if value is not None]
    given = [value for value in (*node.args, *more) if value is not None]
    if len(given) != 3 or [_rank(value) for value in given] != [2, 3, 1]:
        return None
    return cast(tuple[Node, Node, Node], tuple(given))


def composed_product(rows: torch.Tensor, matrices: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Return the product using only operators that every runtime has.

    All rows are multiplied by each matrix, and only the products of rows in that matrix's group are kept.
    With G groups, this takes G times the work, but needs no data-dependent sizes. Rows beyond the last group
    are zeros.
    """
    numbers = torch.arange(rows.shape[0], dtype=offs.dtype, device=rows.device)
    group = (numbers[:, None] >= offs[None, :]).sum(dim=1)
    result = rows.new_zeros(rows.shape[0], matrices.shape[2])
    for index in range(matrices.shape[0]):
        result = torch.where((group == index)[:, None], rows @ matrices[index], result)
    return result


def _product(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    result = input.new_zeros(input.shape[0], weight.shape[2])
    start = 0
    for matrix, end in zip(weight, offs.tolist(), strict=True):
        torch.mm(input[start:end], matrix, out=result[start:end])
        start = end
    return result


def _rank(argument: Any) -> int | None:
    value = argument.meta.get("val") if isinstance(argument, Node) else None
    return value.dim() if isinstance(value, torch.Tensor) else None
