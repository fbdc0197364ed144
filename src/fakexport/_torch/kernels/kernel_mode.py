"""The dispatcher state in which a fake kernel creates tensors. Seen on torch 2.13.

Source: `torch/_subclasses/fake_tensor.py:in_kernel_invocation_manager`.
"""

from __future__ import annotations

from typing import Any

import torch

from fakexport._torch.emulation.fake_tensors import FakeTensorMode

_C: Any = torch._C
alias_of: Any = vars(_C.TensorBase)["data"].__get__
"""Return an alias of a tensor, as `.data` does. The getter is stored here because a trace patches `.data`."""


class kernel_mode:  # noqa: N801 # Used as a function.
    """A context that creates meta tensors without Python dispatch, autograd or fake mode."""

    __slots__ = ("_before", "_grad", "_guard", "_meta", "_mode")

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._guard = _C._DisableTorchDispatch()

    def __enter__(self) -> None:
        self._before = self._mode.in_kernel_invocation
        self._meta = _C._meta_in_tls_dispatch_include()
        self._grad = torch.is_grad_enabled()
        self._guard.__enter__()
        self._mode.in_kernel_invocation = True
        _C._set_meta_in_tls_dispatch_include(True)
        _C._set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        _C._set_grad_enabled(self._grad)
        _C._set_meta_in_tls_dispatch_include(self._meta)
        self._mode.in_kernel_invocation = self._before
        self._guard.__exit__(None, None, None)
