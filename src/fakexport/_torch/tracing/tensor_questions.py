"""Observe queries about strides, views, gradients and conjugation of tensors, but not about sizes or values.

During a trace, such a query reads a fake tensor, and no guard is recorded. A torch function mode observes
each query that Python code makes, including attribute getters. Queries inside a C++ operator are not
observed. Seen on torch 2.11 to 2.13.

Source: `torch/csrc/autograd/python_variable.cpp:THPVariable_get_requires_grad`, `torch/overrides.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType, ModuleType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental import proxy_tensor
from torch.overrides import TorchFunctionMode

from fakexport._torch.emulation.fake_tensors import on_current_device
from fakexport._torch.patching import Patches, outside_of_patches

Property = Literal[
    "contiguous", "channels_last", "channels_last_3d", "strides", "offset", "storage",
    "requires_grad", "is_leaf", "is_view", "is_inference", "is_conj", "is_neg",
]  # fmt: skip
"""Tensor properties that code can query. `storage` means any query about the memory, such as `data_ptr()`."""

_FORMATS: Mapping[Any, Property] = {
    torch.contiguous_format: "contiguous",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
}
_OF_NAME: Mapping[str, Property] = {
    "stride": "strides", "dim_order": "strides", "storage_offset": "offset",
    "untyped_storage": "storage", "storage": "storage", "_typed_storage": "storage", "data_ptr": "storage",
    "is_set_to": "storage", "_is_view": "is_view", "_base": "is_view",
    "requires_grad": "requires_grad", "is_leaf": "is_leaf", "grad_fn": "is_leaf", "retains_grad": "is_leaf",
    "is_inference": "is_inference", "is_conj": "is_conj", "is_neg": "is_neg",
}  # fmt: skip


def _questions() -> dict[Any, Property]:
    """Return the property that each torch function queries. Functions missing in this torch are skipped."""
    found: dict[Any, Property] = {}
    for name, asked in _OF_NAME.items():
        for function in (getattr(Tensor, name, None), getattr(torch, name, None)):
            if callable(function):
                found[function] = asked
            elif function is not None and not isinstance(function, ModuleType):
                found[function.__get__] = asked
    return found


_ASKED = _questions()
_MAY_COPY: Mapping[Any, Property] = {
    Tensor.contiguous: "strides",
    Tensor.to: "strides",
    Tensor.resolve_conj: "is_conj",
    torch.resolve_conj: "is_conj",
    Tensor.resolve_neg: "is_neg",
    torch.resolve_neg: "is_neg",
}
"""Functions that return their argument, or a copy for a different value of this property."""
in_inference_mode: Callable[[], bool] = torch.is_inference_mode_enabled
"""Return whether inference mode is enabled, without recording a query."""


class TensorQuestions(TorchFunctionMode):
    """Call `ask(property, tensor, frame)` before each query that Python code makes about a tensor.

    It must be the innermost mode when `forward` begins.

    Args:
        ask: As above.
        not_copied: Called with the same arguments if a function of `_MAY_COPY` returns its argument itself.
    """

    def __init__(
        self,
        ask: Callable[[Property, Tensor, FrameType | None], None],
        not_copied: Callable[[Property, Tensor, FrameType | None], None],
    ) -> None:
        super().__init__()
        self._ask = ask
        self._not_copied = not_copied

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor or func is torch.as_tensor:
            kwargs = on_current_device(kwargs)
        asked: Property | None = _ASKED.get(func)
        if func is Tensor.is_contiguous:
            form = kwargs.get("memory_format", args[1] if len(args) > 1 else torch.contiguous_format)
            asked = _FORMATS.get(form, "strides")
        if asked is not None:
            for tensor in args:
                if isinstance(tensor, Tensor):
                    self._ask(asked, tensor, sys._getframe(1))
        result = func(*args, **kwargs)
        decides = _MAY_COPY.get(func) if func is not Tensor.to or "memory_format" in kwargs else None
        if decides is not None and args and result is args[0]:
            self._not_copied(decides, result, sys._getframe(1))
        return result


def inference_mode_questions(ask: Callable[[FrameType | None], None]) -> Patches:
    """Return a context that calls `ask` with the frame of each call of `torch.is_inference_mode_enabled`."""

    def is_inference_mode_enabled() -> bool:
        ask(outside_of_patches(sys._getframe(1)))
        return in_inference_mode()

    return Patches({(torch, "is_inference_mode_enabled"): is_inference_mode_enabled})


def has_property(tensor: Tensor, asked: Property) -> bool:
    """Return the value of a tensor's boolean property."""
    match asked:
        case "contiguous":
            return tensor.is_contiguous()
        case "channels_last" | "channels_last_3d":
            return tensor.is_contiguous(memory_format=getattr(torch, asked))
        case "is_view":
            return tensor._is_view()
        case "requires_grad":
            return tensor.requires_grad
        case "is_leaf":
            return tensor.is_leaf
        case "is_inference":
            return tensor.is_inference()
        case "is_conj":
            return tensor.is_conj()
        case "is_neg":
            return tensor.is_neg()
    raise AssertionError(asked)


def node_of(tensor: Tensor) -> Node | None:
    """Return a tensor's node in the current trace, or None if it has no node.

    Tensors inside `vmap` or a body of `torch.cond` have no nodes.
    """
    mode = proxy_tensor.get_proxy_mode()
    slot = None if mode is None else proxy_tensor.get_proxy_slot(tensor, mode.tracer, None)
    return None if slot is None else slot.proxy.node
