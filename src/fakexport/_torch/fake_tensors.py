"""Fake tensors and their modes: the few things that only private torch can make or tell.

Seen on torch 2.11 to 2.13.

Source: `torch/_subclasses/fake_tensor.py`; `torch/_export/non_strict_utils.py:make_fake_inputs`, which
asks a mode that it takes over for a `ShapeEnv` with tracked fakes.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler
from torch._export.utils import _compiling_state_context
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
)
from torch._subclasses.meta_utils import MetaConverter
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes

from .python_kernels import python_kernels
from .real_execution import real_execution
from .wrapper_subclasses import inner_tensors, is_wrapper

__all__ = [
    "NEEDS_VALUES",
    "FakeTensor",
    "FakeTensorMode",
    "fake_elsewhere",
    "hand_on_hooks",
    "is_fake_of",
    "is_fake_tensor",
    "memory_of",
    "meta_of",
    "mode_of",
    "new_fake_mode",
    "own_attributes",
    "quiet_fake_mode",
    "real_to_fake",
    "storage_identity",
    "unknown_values",
]

# Of which torch makes no alias.
_WITHOUT_STRIDES = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""What fake mode raises for an operator whose result depends on data, or that only has real kernels."""


class _SameMode:
    """Stands in for `mode.__deepcopy__`: a deep copy of a fake tensor stays in the mode of the original.

    Stock torch copies the mode as well, and the copied tensor then belongs to a mode that no one entered.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode

    def __call__(self, memo: dict[int, Any]) -> FakeTensorMode:
        return self._mode


def new_fake_mode() -> FakeTensorMode:
    """Return a fake mode whose tensors `torch.export` takes, with dynamic shapes as well."""
    mode = FakeTensorMode(shape_env=ShapeEnv(tracked_fakes=[]), allow_non_fake_inputs=True)
    # On the instance and not on the class: `copy.deepcopy` asks the object, so nothing of torch is patched.
    mode.__dict__["__deepcopy__"] = _SameMode(mode)
    return mode


@contextmanager
def unknown_values(tensors: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Enter a fake mode of its own, in which values are as unknown as in a trace, and no other mode acts.

    What needs a number raises, as in a trace; what `torch.export` can do with an unknown one works.

    Yields:
        Tensors of the same shapes, strides, dtypes and devices.
    """
    with (
        _disable_current_modes(),
        new_fake_mode(),
        quiet_fake_mode(),
        python_kernels(),
        _compiling_state_context(),
        _NonStrictTorchFunctionHandler(),
    ):
        yield {
            name: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
            for name, t in tensors.items()
        }


def is_fake_tensor(value: object) -> bool:
    """Return whether `value` is a fake tensor, of whichever mode, or a wrapper with one inside."""
    return isinstance(value, FakeTensor) or (
        isinstance(value, torch.Tensor)
        and is_wrapper(value)
        and any(isinstance(inner, FakeTensor) for _, inner in inner_tensors(value))
    )


def is_fake_of(value: object, mode: FakeTensorMode) -> bool:
    """Return whether `value` is a fake tensor of this mode, or a wrapper of nothing else."""
    if isinstance(value, torch.Tensor) and is_wrapper(value):
        return all(is_fake_of(inner, mode) for _, inner in inner_tensors(value))
    return isinstance(value, FakeTensor) and value.fake_mode is mode


def mode_of(tensors: Iterable[torch.Tensor]) -> FakeTensorMode | None:
    """Return the mode of the first fake tensor, or None."""
    plain = (inner for tensor in tensors for _, inner in inner_tensors(tensor))
    return next((tensor.fake_mode for tensor in plain if isinstance(tensor, FakeTensor)), None)


def meta_of(fake: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor with the size, stride, offset, storage size and dtype of `fake`.

    Without autograd.
    """
    with real_execution():
        if fake.layout is not torch.strided:
            meta: torch.Tensor = MetaConverter()(fake)
            return meta
        elements = fake.untyped_storage().nbytes() // fake.itemsize
        flat = torch.empty(elements, dtype=fake.dtype, device="meta")
        return flat.as_strided(fake.shape, fake.stride(), fake.storage_offset())


def real_to_fake(mode: FakeTensorMode, real: torch.Tensor, device: torch.device) -> FakeTensor:
    """Return a fake tensor of `mode` with the sizes, layout and dtype of `real`, said to be on `device`.

    It shares nothing with `real`, not even through the memo of the mode.
    """
    with real_execution():
        if real.layout is not torch.strided:
            meta: torch.Tensor = MetaConverter()(real.detach())
        else:
            meta = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
    return FakeTensor(mode, meta, device)


def example_to_fake(mode: FakeTensorMode, real: torch.Tensor, device: torch.device) -> FakeTensor:
    """Return a fake as `real_to_fake` does, with the `requires_grad`, conj and neg bits of `real`."""
    fake = real_to_fake(mode, real, device)
    if real.layout is torch.strided:
        meta = meta_of(fake)
        torch._C._set_conj(meta, real.is_conj())
        torch._C._set_neg(meta, real.is_neg())
        fake = FakeTensor(mode, meta, device)
    fake.requires_grad_(real.requires_grad)
    return fake


def fake_elsewhere(fake: FakeTensor, device: torch.device) -> FakeTensor:
    """Return a new fake tensor like `fake`, said to be on `device`.

    The value of a literal goes along on the CPU alone: fake mode would compute with it where it is.
    Sizes are taken over without a look at them, so that it costs as little where they are symbolic, and
    strides, storage and layout are whatever they are. It takes no part in autograd.
    """
    if fake.layout in _WITHOUT_STRIDES:
        meta = meta_of(fake)
    else:
        with torch.no_grad(), in_kernel_invocation_manager(fake.fake_mode):
            meta = torch.ops.aten.alias.default(fake)
    made = FakeTensor(fake.fake_mode, meta, device)
    if device.type == fake.device.type == "cpu":
        made.constant = fake.constant
    return made


@contextmanager
def quiet_fake_mode() -> Iterator[None]:
    """Enter a context in which fake mode does not log, traceback and all, that an operator refused."""
    log = logging.getLogger(FakeTensorMode.__module__)
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled


def storage_identity(tensor: torch.Tensor) -> int:
    """Return a number that is equal exactly for tensors that share a storage, while the storage lives."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


def memory_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the memory that a tensor looks at; None for the layouts that have none, such as sparse ones."""
    return tensor.untyped_storage() if torch._C._has_storage(tensor) else None


def own_attributes(fake: FakeTensor) -> dict[str, Any]:
    """Return the attributes that the model's code set on a fake tensor."""
    held, usual = vars(fake), _attributes_of_any_fake()
    if held.keys() <= usual:
        return {}
    return {
        name: value
        for name, value in held.items()
        if name not in usual and not name.startswith("_fakexport_")
    }


def hand_on_hooks(fake: FakeTensor, real: torch.Tensor) -> None:
    """Return a tensor the gradient hooks that were registered on a fake one."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if hooks := getattr(fake, name):
            setattr(real, name, hooks)


@functools.cache
def _attributes_of_any_fake() -> frozenset[str]:
    with real_execution():
        fake = real_to_fake(new_fake_mode(), torch.empty(0), torch.device("cpu"))
    return frozenset({*vars(fake), "_is_param"})
