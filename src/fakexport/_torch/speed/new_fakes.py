"""Create fake tensors without most of the constructor's work, which takes 16 percent of a memoized trace.

This can be removed when the constructor skips the checks that a copy of a fake tensor does not need. Seen
on torch 2.13 and 2.15.

Source: `torch/_subclasses/fake_tensor.py:FakeTensor.__new__`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._export import config as export_config
from torch._subclasses.fake_tensor import FakeTensorConfig

from fakexport._torch.emulation.fake_tensors import FakeTensor, FakeTensorMode

_META = torch.device("meta")


def reserved(
    bytes_: int | torch.SymInt,
    shape: tuple[Any, ...] = (0,),
    strides: tuple[Any, ...] | None = None,
    offset: Any = None,
    dtype: torch.dtype = torch.uint8,
) -> torch.Tensor:
    """Return a tensor with a new storage. Symbolic numbers are used as they are, without new guards."""
    made: torch.Tensor = torch.Tensor._make_wrapper_subclass(
        FakeTensor, shape, strides, offset, dtype=dtype, device=_META, storage_size=bytes_
    )
    return made


class NewFakes:
    """Create fake tensors faster than their constructor, except the first one of each mode and device."""

    def __init__(self) -> None:
        self._attributes: dict[tuple[FakeTensorMode, torch.device], dict[str, Any]] = {}
        # Debug settings of torch's own leak tests, which only the constructor honors.
        self._is_debugging = FakeTensorConfig.debug or export_config.detect_non_strict_fake_tensor_leaks

    def new(
        self,
        mode: FakeTensorMode,
        meta: torch.Tensor,
        device: torch.device,
        memory: torch.Tensor | None = None,
    ) -> FakeTensor:
        """Return `FakeTensor(mode, meta, device)`.

        Args:
            mode: The mode of the new tensor.
            meta: A meta tensor with the sizes, strides, dtype and storage of the new tensor.
            device: The device of the new tensor, with an index.
            memory: A meta tensor whose storage the new tensor uses instead. If given, call this inside
                `in_kernel_invocation_manager(mode)`.
        """
        attributes = self._attributes.get((mode, device))
        if attributes is None or self._is_debugging:
            made = FakeTensor(mode, meta, device)
            self._attributes[mode, device] = vars(made).copy()
            if memory is None:
                return made
        else:
            made = torch.Tensor._make_subclass(
                FakeTensor, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=device
            )
            made.__dict__ = (
                attributes.copy()
            )  # Shares its keys; with `update` the dict would be three times as large.
        if memory is not None:
            torch._functionalize_unsafe_set(made, memory)
        if mode._allow_unsafe_data_ptr_access:
            torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
        else:
            torch._C._set_throw_on_mutable_data_ptr(made)
        return made
