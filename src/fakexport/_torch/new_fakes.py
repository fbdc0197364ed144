"""Making fake tensors without most of their constructor, which takes 16 percent of a trace with the memo.

It can go when the constructor leaves out the checks that a copy of another fake does not need. Seen on torch
2.13 and 2.15.

Source: `torch/_subclasses/fake_tensor.py:FakeTensor.__new__`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._export import config as export_config
from torch._subclasses.fake_tensor import FakeTensorConfig

from .fake_tensors import FakeTensor, FakeTensorMode

_META = torch.device("meta")


def reserved(
    bytes_: int | torch.SymInt,
    shape: tuple[Any, ...] = (0,),
    strides: tuple[Any, ...] | None = None,
    offset: Any = None,
    dtype: torch.dtype = torch.uint8,
) -> torch.Tensor:
    """Return a tensor in new memory. Symbolic numbers are taken as they are: none is computed or guarded."""
    made: torch.Tensor = torch.Tensor._make_wrapper_subclass(
        FakeTensor, shape, strides, offset, dtype=dtype, device=_META, storage_size=bytes_
    )
    return made


class NewFakes:
    """Makes fake tensors; from the second of a mode and device on, quicker than their constructor."""

    def __init__(self) -> None:
        self._attributes: dict[tuple[FakeTensorMode, torch.device], dict[str, Any]] = {}
        # Torch's own tests look for leaks with these, which only the constructor does.
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
            meta: Its sizes, strides, dtype and memory, on the device `meta`.
            device: Its device, with the index.
            memory: A tensor on `meta` in the memory that it gets instead, inside of
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
            made.__dict__ = attributes.copy()  # Shares its keys; `update` would make a dict thrice as large.
        if memory is not None:
            torch._functionalize_unsafe_set(made, memory)
        if mode._allow_unsafe_data_ptr_access:
            torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
        else:
            torch._C._set_throw_on_mutable_data_ptr(made)
        return made
