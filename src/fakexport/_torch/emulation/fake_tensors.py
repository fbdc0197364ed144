"""Create and inspect fake tensors and fake modes.

Seen on torch 2.11 to 2.13.

Source: `torch/_subclasses/fake_tensor.py`; `torch/_export/non_strict_utils.py:make_fake_inputs`, which
requires an existing mode to have a `ShapeEnv` with tracked fakes.
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
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
)
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.meta_utils import MetaConverter
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes

from fakexport._torch.operators.real_execution import python_kernels, real_execution
from fakexport._torch.patching import Patches

from .wrapper_subclasses import inner_tensors, is_wrapper

# torch cannot alias tensors of these layouts.
_WITHOUT_STRIDES = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""Errors that fake mode raises for operators that are data-dependent or have no fake kernel."""


class _SameMode:
    """Replaces `mode.__deepcopy__`, so that a deep copy of a fake tensor stays in its mode.

    torch would also copy the mode, and the copied tensor would belong to a mode that was never entered.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode

    def __call__(self, memo: dict[int, Any]) -> FakeTensorMode:
        return self._mode


def active_fake_mode() -> FakeTensorMode | None:
    """Return the innermost active `FakeTensorMode` of this thread, or None."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode if isinstance(mode, FakeTensorMode) else None


def new_fake_mode() -> FakeTensorMode:
    """Return a fake mode whose tensors `torch.export` accepts, also with dynamic shapes."""
    mode = FakeTensorMode(shape_env=ShapeEnv(tracked_fakes=[]), allow_non_fake_inputs=True)
    # This is set on the instance, where `copy.deepcopy` looks it up, so that torch's class is not patched.
    mode.__dict__["__deepcopy__"] = _SameMode(mode)
    return mode


@contextmanager
def unknown_values(tensors: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Enter a separate fake mode in which values are unknown, as in a trace. Other modes are disabled.

    As in a trace, operations that need a concrete number raise an error, and operations that `torch.export`
    supports for unbacked symbols work.

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
    """Return whether `value` is a fake tensor of any mode, or a wrapper subclass that contains one."""
    return isinstance(value, FakeTensor) or (
        isinstance(value, torch.Tensor)
        and is_wrapper(value)
        and any(isinstance(inner, FakeTensor) for _, inner in inner_tensors(value))
    )


def is_fake_of(value: object, mode: FakeTensorMode) -> bool:
    """Return whether `value` is a fake tensor of this mode, or a wrapper that contains only such tensors."""
    if isinstance(value, torch.Tensor) and is_wrapper(value):
        return all(is_fake_of(inner, mode) for _, inner in inner_tensors(value))
    return isinstance(value, FakeTensor) and value.fake_mode is mode


def mode_of(tensors: Iterable[torch.Tensor]) -> FakeTensorMode | None:
    """Return the mode of the first fake tensor, or None."""
    plain = (inner for tensor in tensors for _, inner in inner_tensors(tensor))
    return next((tensor.fake_mode for tensor in plain if isinstance(tensor, FakeTensor)), None)


def meta_of(fake: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor with the shape, strides, offset, storage size and dtype of `fake`.

    It has no autograd state.
    """
    with real_execution():
        if fake.layout is not torch.strided:
            meta: torch.Tensor = MetaConverter()(fake)
            return meta
        elements = fake.untyped_storage().nbytes() // fake.itemsize
        flat = torch.empty(elements, dtype=fake.dtype, device="meta")
        return flat.as_strided(fake.shape, fake.stride(), fake.storage_offset())


def real_to_fake(mode: FakeTensorMode, real: torch.Tensor, device: torch.device) -> FakeTensor:
    """Return a fake tensor of `mode` with the shape, layout and dtype of `real`, on the fake device `device`.

    It shares no state with `real`, and is not added to the mode's memo of converted tensors.
    """
    with real_execution():
        if real.layout is not torch.strided:
            meta: torch.Tensor = MetaConverter()(real.detach())
        else:
            meta = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
    return FakeTensor(mode, meta, device)


def example_to_fake(mode: FakeTensorMode, real: torch.Tensor, device: torch.device) -> FakeTensor:
    """Like `real_to_fake`, but also copy `requires_grad` and the conj and neg bits of `real`."""
    fake = real_to_fake(mode, real, device)
    if real.layout is torch.strided:
        meta = meta_of(fake)
        torch._C._set_conj(meta, real.is_conj())
        torch._C._set_neg(meta, real.is_neg())
        fake = FakeTensor(mode, meta, device)
    fake.requires_grad_(real.requires_grad)
    return fake


def fake_elsewhere(fake: FakeTensor, device: torch.device) -> FakeTensor:
    """Return a new fake tensor like `fake`, on the fake device `device`.

    A literal keeps its attribute `constant` only if `device` is the CPU, because fake mode computes with a
    constant on the constant's own device. Sizes are copied without being inspected, so symbolic sizes cost no
    more than static ones. Strides, storage and layout are kept. The result is detached from autograd.
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
    """Enter a context in which fake mode does not log tracebacks of rejected operators."""
    log = logging.getLogger(FakeTensorMode.__module__)
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled


def storage_identity(tensor: torch.Tensor) -> int:
    """Return a number that identifies a tensor's storage as long as the storage is alive."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


def memory_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return a tensor's storage, or None for layouts without one, such as sparse layouts."""
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
    """Copy the gradient hooks registered on a fake tensor to a real one."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if hooks := getattr(fake, name):
            setattr(real, name, hooks)


@functools.cache
def _attributes_of_any_fake() -> frozenset[str]:
    with real_execution():
        fake = real_to_fake(new_fake_mode(), torch.empty(0), torch.device("cpu"))
    return frozenset({*vars(fake), "_is_param"})


def virtual_fakes() -> Patches:
    """Return a context for fake tensors on devices that do not exist. It patches three parts of torch.

    Initialization: `FakeTensorMode.avoid_device_init` is derived from `torch.cuda.is_available()`. With the
    result from the device profile, fake mode would allocate real memory: `torch.tensor([], device="cuda")`,
    which every transformers KV cache runs, would fail with "Could not run 'aten::empty_strided' ... 'CUDA'".
    On torch 2.11, each fake tensor would also create a real tensor to initialize its device.

    Index: if fake mode avoids device initialization, torch's C++ uses index 0 for a device without an
    index ("to avoid device init"). The correct index is that of `x` in `x.new_tensor(data)`, or that of the
    current device. Source: `torch/csrc/utils/tensor_new.cpp:internal_new_from_data`.

    Dispatch cache: `FakeTensorMode` caches operator results by their arguments, for the whole process.
    Some results also depend on device queries: `torch.version.hip` determines the shape of flash
    attention's second output. Therefore, each emulated block has a separate cache.
    """
    return Patches(
        {
            (FakeTensorMode, "avoid_device_init"): property(lambda mode: True),
            (FakeTensorMode, "cache"): {},
            (fake_tensor, "init_gpu_context"): lambda device: None,
            (FakeTensor, "new_tensor"): _new_tensor,
        }
    )


@contextmanager
def devices_unused() -> Iterator[None]:
    """Enter a context in which new fake tensors do not use their devices, without emulation.

    On a machine with GPUs, torch otherwise allocates a real tensor on the device of each fake tensor. This
    takes memory of the GPU, and raises an error for `cuda:3` on a machine with one GPU.
    """
    with Patches({(fake_tensor, "init_gpu_context"): lambda device: None}):
        yield


def _new_tensor(self: FakeTensor, data: Any, **options: Any) -> torch.Tensor:
    if options.get("device") is None:
        options["device"] = self.device
    return torch.Tensor.new_tensor(self, data, **options)


def on_current_device(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `torch.tensor`. If the device has no index, add the current index."""
    device = kwargs.get("device")
    named = torch.device(device) if isinstance(device, (str, torch.device)) else None
    if named is None or named.index is not None or named.type not in ("cuda", "xpu"):
        return kwargs
    current = getattr(torch, named.type).current_device()
    return {**kwargs, "device": torch.device(named.type, current)} if current else kwargs


def forget_results() -> None:
    """Clear the dispatch cache. Its keys contain `cuda` without an index.

    Therefore, its results are invalid after the current device changes.
    """
    FakeTensorMode.cache.clear()
    mode = active_fake_mode()
    if mode is not None and mode.shape_env is not None:
        mode.shape_env.fake_tensor_cache.clear()
