"""Products of groups of rows with a matrix each: how mixtures of experts are computed.

`aten._grouped_mm` has a meta function for bfloat16 alone (torch 2.13), so for others transformers traces
an operator of its own, `transformers::grouped_mm_fallback`, written in Python
(transformers/integrations/moe.py, 5.23). Both are meant here: rows `[S, K]` sorted by group, matrices
`[G, K, N]`, and for each group the end of its rows; the result is `[S, N]`.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any, cast

import torch
from torch.fx import Node

TORCHS = "aten._grouped_mm.default"
TRANSFORMERS = "transformers.grouped_mm_fallback.default"
_NAME, _MODULE = "transformers::grouped_mm_fallback", "transformers.integrations.moe"


def register_grouped_product() -> None:
    """Register the operator of transformers where it is missing: by importing the module that makes it, if
    transformers is installed, else as an operator of the same meaning.

    Two libraries cannot define one operator: where transformers could still be imported, it does.
    """
    with suppress(ImportError):
        importlib.import_module(_MODULE)
        return
    operator = torch.library.custom_op(
        _NAME, _product, mutates_args=(), schema="(Tensor input, Tensor weight, Tensor offs) -> Tensor"
    )
    operator.register_fake(lambda input, weight, offs: input.new_empty(input.shape[0], weight.shape[2]))


def product_arguments(node: Node) -> tuple[Node, Node, Node] | None:
    """Return the rows, the matrices and the ends of the groups that a node multiplies.

    None for a node of torch's operator that multiplies something else: batches of matrices, or with a bias.
    """
    more = [value for value in node.kwargs.values() if value is not None]
    given = [value for value in (*node.args, *more) if value is not None]
    if len(given) != 3 or [_rank(value) for value in given] != [2, 3, 1]:
        return None
    return cast(tuple[Node, Node, Node], tuple(given))


def composed_product(rows: torch.Tensor, matrices: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Return the product, made of operators that every runtime has: each matrix times all rows, of which
    those of its group are kept. That is as many times the work as there are groups, and needs no sizes that
    depend on data. Rows beyond the last group are zeros.

    Args:
        rows: `[S, K]`, sorted by group.
        matrices: `[G, K, N]`.
        offs: `[G]`, of integers: where the rows of each group end.
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
