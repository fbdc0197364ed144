"""Compute constants on the CPU with operators that return identical bits on every device. Seen on torch 2.13.

Float sums, `exp`, `argmax` with ties and division by a Python number (CUDA multiplies by the reciprocal)
are excluded: their results differ between devices, so a trace could take a different branch than the device.

Source: `aten/src/ATen/native/cuda/BinaryDivTrueKernel.cu`.
"""

from __future__ import annotations

import math
import operator as python_operator
from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils._pytree import tree_iter

_MOST_ELEMENTS = 2**20

_ANY_DTYPE = frozenset({
    "alias", "clone", "detach", "detach_", "lift_fresh_copy", "view", "reshape", "_unsafe_view",
    "unsqueeze", "squeeze", "select", "slice", "expand", "permute", "transpose", "t", "unbind", "split",
    "split_with_sizes", "chunk", "flatten", "contiguous", "to", "_to_copy", "type_as", "cat", "stack",
    "index_select", "add", "sub", "rsub", "mul", "neg", "abs", "div", "eq", "ne", "lt", "le", "gt", "ge",
    "logical_and", "logical_or", "logical_not", "logical_xor", "isnan", "isinf", "where", "minimum",
    "maximum", "max", "min", "amax", "amin", "any", "all", "ceil", "floor", "trunc", "round", "clamp",
    "zeros", "ones", "zeros_like", "ones_like", "pad", "constant_pad_nd", "index", "nonzero",
    "nonzero_numpy", "repeat_interleave",
})  # fmt: skip
_INTEGERS_ALONE = frozenset({
    "sum", "prod", "cumsum", "arange", "full", "full_like", "scalar_tensor", "pow", "square",
    "floor_divide", "remainder", "fmod", "diff", "bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor",
    "__and__", "__or__", "__xor__",
})  # fmt: skip
# Other overloads also return the index of one of several equal elements, or round to a number of decimals.
_ONLY_DEFAULT = frozenset({"max", "min", "round"})
_DIVIDING_DEVICES = ("cpu", "cuda")  # Devices that round float division correctly.


class NotExact(Exception):
    """A value cannot be computed on the CPU with the same bits as on every device. The message says why."""


def exact_result(node: Node, values: Mapping[Node, Any]) -> Any:
    """Return the result of a node of a traced graph, computed on the CPU.

    Raises:
        NotExact: Another device may return different bits, or the operator fails.
    """
    arguments: Any = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: values[n])
    args, kwargs = arguments
    if node.target is python_operator.getitem:
        return args[0][args[1]]
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        raise NotExact(f"{target} is not known to return the same result on every device")
    kwargs = {name: _on_cpu(value) for name, value in kwargs.items() if name != "pin_memory"}
    args = tuple(_on_cpu(value) for value in args)
    _check_before(node, target, args, kwargs)
    try:
        result = target(*args, **kwargs)
    except Exception as error:
        raise NotExact(f"{target} fails on the CPU: {error}") from error
    _check_result(target, result, node.meta.get("val"))
    return result


def _check_before(node: Node, target: OpOverload, args: Any, kwargs: Any) -> None:
    name = target._schema.name.partition("::")[2]
    tensors = [leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    results = [leaf for leaf in tree_iter(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    if any(
        isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None
        for r in results
        for size in r.shape
    ):
        raise NotExact("its size is not known")
    has_floats = any(t.is_floating_point() for t in (*tensors, *results))
    is_exact = name in _ANY_DTYPE or (name in _INTEGERS_ALONE and not has_floats)
    if not is_exact or (name in _ONLY_DEFAULT and target._overloadname != "default"):
        raise NotExact(f"{target} may return different bits on another device")
    if any(
        isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) for leaf in tree_iter((args, kwargs))
    ):
        raise NotExact("it depends on a size")
    if any(r.numel() > _MOST_ELEMENTS for r in results):
        raise NotExact("it is large")
    alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
    if has_floats and name in ("add", "sub", "rsub") and alpha != 1:
        raise NotExact("a fused multiply-add may be rounded once or twice")
    if name == "div":
        _check_division(node, args, kwargs)


def _check_division(node: Node, args: Any, kwargs: Any) -> None:
    """Raise `NotExact` for divisions that may differ between devices, such as a division by a CPU scalar."""
    if kwargs.get("rounding_mode") is not None:
        raise NotExact("a rounded division may return different bits on another device")
    divisor = args[1]
    if not isinstance(divisor, torch.Tensor):
        if abs(math.frexp(divisor)[0]) != 0.5:
            raise NotExact("a division by a number may return different bits on another device")
        return
    devices = {n.meta["val"].device.type for n in node.all_input_nodes}
    if len(devices) != 1 or not devices <= set(_DIVIDING_DEVICES):
        raise NotExact("a division may return different bits on another device")


def _check_result(target: OpOverload, result: Any, fake: Any) -> None:
    results = [leaf for leaf in tree_iter(result) if isinstance(leaf, torch.Tensor)]
    fakes = [leaf for leaf in tree_iter(fake) if isinstance(leaf, torch.Tensor)]
    if len(results) != len(fakes):
        raise NotExact(f"{target} returns a different number of tensors on the CPU")
    for made, seen in zip(results, fakes, strict=True):
        check_kind(made)
        if (made.dtype, made.shape) != (seen.dtype, seen.shape):
            raise NotExact(f"{target} returns a different shape or dtype on the CPU")


def check_kind(value: torch.Tensor) -> None:
    """Check that operators on a tensor, and its conversion to integers, return the same on all devices.

    Raises:
        NotExact: The tensor is complex, quantized or not strided, is a float tensor other than float32 and
            float64, or has elements that are not finite or have an absolute value of 2**31 or more.
    """
    is_plain = value.layout is torch.strided and not value.is_quantized and not value.is_complex()
    if not is_plain or value.dtype in (torch.float16, torch.bfloat16):
        raise NotExact(f"arithmetic in {value.dtype} differs between devices")
    if value.is_floating_point():
        if value.dtype not in (torch.float32, torch.float64):
            raise NotExact(f"arithmetic in {value.dtype} differs between devices")
        if not bool(torch.isfinite(value).all()) or bool((value.abs() >= 2**31).any()):
            raise NotExact("devices convert it to different integers")


def _on_cpu(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value
