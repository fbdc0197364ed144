"""The functions that `torch.vmap` leaves in a program, and the levels that `torch.func` opens and closes.

`vmap` is not an operator: a program has a function that opens a level, one that makes a batched tensor of a
tensor, the operators of what is mapped, and then the two the other way round. Levels are a stack of the
thread. A batched tensor is a plain `Tensor` to Python, whatever it wraps, and shows the sizes of one element.

Seen on torch 2.11 to 2.13. Source: `torch/_functorch/predispatch.py`; `torch/_export/verifier.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch._functorch import predispatch

_functorch = torch._C._functorch

VMAP_LEVEL_STEPS = frozenset(
    {
        predispatch._vmap_increment_nesting,
        predispatch._vmap_decrement_nesting,
        predispatch.lazy_load_decompositions,
    }
)
"""Those that return no tensor: what follows them runs on the levels that they open and close."""


@contextmanager
def transform_levels_closed() -> Iterator[None]:
    """Enter the context after which the levels are closed that were opened inside, however it was left.

    Stock leaves levels open after some failed exports: in the same process, every later call is then taken
    for one inside of the transform.
    """
    before = _functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        _functorch.pop_dynamic_layer_stack_and_undo_to_depth(before)


def is_transformed(tensor: torch.Tensor) -> bool:
    """Return whether it is a wrapper of a `torch.func` level, even of a closed one."""
    return bool(_functorch.is_functorch_wrapped_tensor(tensor))


def without_levels(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside of all levels, which has the memory; the tensor itself if it is of none."""
    while is_transformed(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def with_other_memory(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return a tensor of the same levels of `vmap` around what `change` makes of the one inside."""
    if not _functorch.is_batchedtensor(tensor):
        return change(tensor)
    inside = with_other_memory(_functorch.get_unwrapped(tensor), change)
    batched: torch.Tensor = _functorch._add_batch_dim(
        inside, _functorch.maybe_get_bdim(tensor), _functorch.maybe_get_level(tensor)
    )
    return batched


def want_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor.requires_grad_()` for a plain tensor, which torch forbids on an open level."""
    if _functorch.maybe_current_level() is None:
        return tensor.requires_grad_()
    was_allowed = _functorch.get_inplace_requires_grad_allowed()
    _functorch.set_inplace_requires_grad_allowed(True)
    try:
        return tensor.requires_grad_()
    finally:
        _functorch.set_inplace_requires_grad_allowed(was_allowed)
