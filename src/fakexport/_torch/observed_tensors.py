"""What code can observe of a fake tensor and its sizes, as plain data. Seen on torch 2.13.

Source: `torch/_subclasses/fake_tensor.py:FakeTensor`, `torch/fx/experimental/proxy_tensor.py:track_tensor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import _ProxyTensor, disable_proxy_modes_tracing
from torch.fx.experimental.sym_node import SymNode

from .fake_tensors import FakeTensor, own_attributes

# `nn.Buffer` gives them to a tensor.
_OF_BUFFERS = {"_is_buffer", "persistent"}
_MEMOS = ("_nonzero_memo", "_item_memo", "_unique_memo", "_nested_int_memo")
_grad_fn: Any = vars(torch._C.TensorBase)["grad_fn"]
SymbolicNumber = (torch.SymInt, torch.SymFloat, torch.SymBool)
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
"""The classes of operators: each operator is one object, which its name tells."""


def why_not_observable(tensor: torch.Tensor) -> str | None:
    """Return why not everything about a tensor can be told; None if it can."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "a tensor of a transform"
    if type(tensor) is not FakeTensor:
        return f"a {type(tensor).__name__} that is not a fake tensor"
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return "a tensor without strides"
    if tensor.constant is not None or tensor.real_tensor is not None:
        return "a tensor with a known value"
    if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
        return "a tensor with gradient hooks"
    if (
        (tensor.is_leaf and tensor.grad is not None)
        or tensor.retains_grad
        or not own_attributes(tensor).keys() <= _OF_BUFFERS
    ):
        return "a tensor with attributes of its own"
    return None


def tensor_facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what is observable of a tensor besides its sizes and its memory; compare with `==`."""
    assert isinstance(tensor, FakeTensor)
    held = vars(tensor)
    return (
        tensor.dtype,
        tensor.fake_device,
        tensor.requires_grad,
        tensor.is_leaf,
        tensor._is_view(),
        None if tensor.is_inference() else tensor._version,
        tensor.is_conj(),
        tensor.is_neg(),
        held.get("_is_param", False),
        held.get("_is_buffer", False),
        held.get("persistent"),
        _grad_fn.__get__(tensor) is None,  # See `gradients_need_a_trace`.
        id(tensor.fake_mode),
        *[None if (memo := held.get(name)) is None else id(memo) for name in _MEMOS],
    )


def numbers_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return sizes, strides, number of elements, offset, and bytes of the memory; integers or `SymInt`."""
    return (
        *tensor.shape,
        *tensor.stride(),
        tensor.numel(),
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
    )


def proxy_of(tracer: Any, tensor: torch.Tensor) -> _ProxyTensor | None:
    """Return what a trace knows a tensor by."""
    found: _ProxyTensor | None = tracer.tensor_tracker.get(tensor)
    return found


def thunk_of(tracer: Any, number: Any) -> Any:
    """Return the lazy proxy of a symbolic number, or None."""
    node: SymNode = number.node
    return tracer.symnode_tracker.sym_node_dict.get(node)


def source_of(thunk: Any) -> Node | None:
    """Return the node of a size, or the node it will be asked of; None if it is computed from other sizes."""
    if thunk.f is None:
        node: Node = thunk.r.node
        return node
    function = getattr(thunk.f, "func", None)
    if not isinstance(function, FunctionType) or "proxy" not in function.__code__.co_freevars:
        return None
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    asked: Node = cells["proxy"].cell_contents.node
    return asked


def known_sizes(tracer: Any) -> list[Any]:
    """Return the number by which a trace knows each symbol: code that computes with sizes may get its
    node.
    """
    return [entry.value for entry in tracer.sympy_expr_tracker.values()]


@contextmanager
def tracing_paused() -> Iterator[None]:
    """Enter a context in which a look at a tensor or a symbolic size leaves nothing in the trace.

    Not even the name of the function that was asked last, which a later node would get.
    """
    with disable_proxy_modes_tracing(), torch._C.DisableTorchFunction():
        yield
