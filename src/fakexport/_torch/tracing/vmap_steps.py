"""The functions that `torch.vmap` adds to a program, and the transform levels of `torch.func`.

`vmap` is not an operator. The program contains a function that opens a level, a function that converts a
tensor to a batched tensor, the mapped operators, and then the inverses of both functions. Each thread has a
stack of levels. In Python, the class of a batched tensor is always `Tensor`, even if it wraps a subclass, and
its shape is that of one element.

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
"""Functions that return no tensor and open or close levels for the following operators."""


def levels_opened(function: object) -> int:
    """Return how many levels a function in a program opens: 1, -1 if it closes one, or 0."""
    if function is predispatch._vmap_increment_nesting:
        return 1
    return -1 if function is predispatch._vmap_decrement_nesting else 0


@contextmanager
def transform_levels_closed() -> Iterator[None]:
    """Enter a context that, on exit, closes all levels that were opened in it, even after an error.

    torch leaves levels open after some failed exports. Every later call in the same process would then run
    inside the transform.
    """
    before = _functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        _functorch.pop_dynamic_layer_stack_and_undo_to_depth(before)


def is_transformed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a wrapper of a `torch.func` level, even if the level is closed."""
    return bool(_functorch.is_functorch_wrapped_tensor(tensor))


def without_levels(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside all levels, which has the storage. Return a plain tensor unchanged."""
    while is_transformed(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def with_other_memory(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Apply `change` to the tensor inside all `vmap` levels, and wrap the result in the same levels."""
    if not _functorch.is_batchedtensor(tensor):
        return change(tensor)
    inside = with_other_memory(_functorch.get_unwrapped(tensor), change)
    batched: torch.Tensor = _functorch._add_batch_dim(
        inside, _functorch.maybe_get_bdim(tensor), _functorch.maybe_get_level(tensor)
    )
    return batched


def want_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """Call `requires_grad_()` on a plain tensor, even while a level is open, when torch forbids it."""
    if _functorch.maybe_current_level() is None:
        return tensor.requires_grad_()
    was_allowed = _functorch.get_inplace_requires_grad_allowed()
    _functorch.set_inplace_requires_grad_allowed(True)
    try:
        return tensor.requires_grad_()
    finally:
        _functorch.set_inplace_requires_grad_allowed(was_allowed)
