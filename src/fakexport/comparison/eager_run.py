"""Running the eager model: as it is, and in double precision."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport.capture import plain_forward

from .kernels import Kernel, KernelRecord, recorded

EagerRun = tuple[list[Kernel], list[Any]]
"""The kernels that ran, and the leaves of the output."""

_HALVES = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64)


def eager_run(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, record: KernelRecord | None = None
) -> EagerRun:
    """Run a module on copies of the inputs; buffers that it changes are put back."""
    path: list[str] = [""]
    record = record or KernelRecord(lambda: (path[-1], None))
    if record.dtypes:
        record.where = lambda: (path[-1], None)
    args, kwargs = copy.deepcopy((tuple(args), dict(kwargs)))
    state = {name: tensor.detach().clone() for name, tensor in module.named_buffers()}
    try:
        with plain_forward(module, args, kwargs), _hooks(module, path), recorded(record):
            result = module(*args, **kwargs)
    finally:
        for name, tensor in module.named_buffers():
            if name in state:
                tensor.detach().copy_(state[name])
    return record.kernels, tree_leaves(result)


def reference_run(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> EagerRun:
    """Run a copy of a module in double precision: weights, inputs, and whatever it casts to or creates."""
    exact = copy.deepcopy(module).double()
    given = tree_map(_exact, (tuple(args), dict(kwargs)))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        record = KernelRecord(lambda: ("", None), dtypes=_HALVES)
        return eager_run(exact, given[0], given[1], record=record)
    finally:
        torch.set_default_dtype(before)


def _exact(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_float else value


@contextmanager
def _hooks(module: nn.Module, path: list[str]) -> Iterator[None]:
    """Keep the path of the module that is being called on top of a list."""

    def leave(*_: Any) -> None:
        path.pop()  # A hook that returns something would replace the output.

    handles = []
    for name, inner in module.named_modules():
        handles.append(inner.register_forward_pre_hook(lambda *_, name=name: path.append(name)))
        handles.append(inner.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
