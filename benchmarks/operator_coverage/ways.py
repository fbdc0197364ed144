"""Run an operator on fake tensors in three ways: called directly, with autograd, inside `torch.export`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fakexport._torch.emulation.fake_tensors import FakeTensorMode

from .samples import Call

__all__ = ["WAYS"]

Way = Callable[[OpInfo, Call, FakeTensorMode], Iterator[list[Any]]]
"""Run one call, and yield the outputs of each step."""


def called_directly(op: OpInfo, call: Call, mode: FakeTensorMode) -> Iterator[list[Any]]:
    args, kwargs = call
    with mode:
        yield tree_leaves(op(*args, **kwargs))


def with_autograd(op: OpInfo, call: Call, mode: FakeTensorMode) -> Iterator[list[Any]]:
    args, kwargs = call
    with mode:
        outputs = tree_leaves(op(*args, **kwargs))
        yield outputs
        roots = [out for out in outputs if isinstance(out, torch.Tensor) and out.requires_grad]
        leaves = [leaf for leaf in tree_leaves(call) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if roots and leaves:
            grads = [torch.ones_like(root) for root in roots]
            yield list(torch.autograd.grad(roots, leaves, grads, allow_unused=True))


def in_export(op: OpInfo, call: Call, mode: FakeTensorMode) -> Iterator[list[Any]]:
    leaves, structure = tree_flatten(call)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    program = torch.export.export(_Calling(op, leaves, structure), tuple(tensors), strict=False)
    output = program.graph.output_node()
    yield [node.meta["val"] if isinstance(node, torch.fx.Node) else node for node in output.args[0]]


class _Calling(torch.nn.Module):
    """Call the operator with the tensors passed to `forward` and the other arguments of the constructor."""

    def __init__(self, op: OpInfo, leaves: list[Any], structure: Any) -> None:
        super().__init__()
        self._call = op, [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves], structure

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        op, others, structure = self._call
        remaining = iter(tensors)
        leaves = [next(remaining) if other is None else other[0] for other in others]
        args, kwargs = tree_unflatten(leaves, structure)
        return tree_leaves(op(*args, **kwargs))


WAYS: dict[str, tuple[Way, tuple[str, ...]]] = {
    "direct": (called_directly, ("direct",)),
    "autograd": (with_autograd, ("forward", "backward")),
    "export": (in_export, ("export",)),
}
"""Name of a way -> the function that runs it, and the names of the steps that it yields."""
