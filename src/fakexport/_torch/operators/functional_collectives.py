"""Functional collectives, which `torch.export` keeps as graph nodes.

TorchDynamo converts the public functions of torch.distributed to `_c10d_functional` operators. Their fake
kernels need no process group: the group is a name that is resolved at run time. Seen on torch 2.13.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

DEFAULT_GROUP = "0"
"""Name of the first group that `torch.distributed.init_process_group` creates."""

_OPERATORS: Any = torch.ops._c10d_functional
KINDS = {
    f"_c10d_functional.{name}.default": kind
    for name, kind in {
        "all_reduce": "all_reduce",
        "all_reduce_": "all_reduce",
        "all_gather_into_tensor": "all_gather",
        "reduce_scatter_tensor": "reduce_scatter",
        "all_to_all_single": "all_to_all",
        "broadcast": "broadcast",
    }.items()
}


def all_reduce(value: torch.Tensor) -> torch.Tensor:
    """Return the sum of the tensors of all ranks, with the same shape."""
    result: torch.Tensor = _OPERATORS.wait_tensor(_OPERATORS.all_reduce(value, "sum", DEFAULT_GROUP))
    return result


def all_gather(value: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return the concatenated tensors of all ranks, `[ranks * value.shape[0], ...]`."""
    result: torch.Tensor = _OPERATORS.wait_tensor(
        _OPERATORS.all_gather_into_tensor(value.contiguous(), ranks, DEFAULT_GROUP)
    )
    return result


def collective_of(node: Node) -> str | None:
    """Return the kind of a collective, such as `all_reduce` or `all_gather`. Return None for other nodes."""
    return KINDS.get(str(node.target)) if node.op == "call_function" else None
