"""Operators that refuse the dtypes of their operands when they run, and not while they are traced: FE209.

In torch 2.13 the fake kernels of these operators compare no dtypes, and their kernels for the CPU and for
CUDA do. What one of the two accepts is not reported: batch norm with parameters of another dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.operator_schema import argument_values
from fakexport.diagnose.labels import labels_at
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.program import Visit, operator_name, walk
from fakexport.rules import rule

__all__ = ["diagnose_dtypes"]

_LAYER = ("input", "weight")
_ONE_DTYPE = {
    "aten.linear.default": _LAYER,
    "aten.mm.default": ("self", "mat2"),
    "aten.mv.default": ("self", "vec"),
    "aten.matmul.default": ("self", "other"),
    "aten.addmm.default": ("self", "mat1", "mat2"),
    "aten.addbmm.default": ("self", "batch1", "batch2"),
    "aten.conv1d.default": _LAYER,
    "aten.conv1d.padding": _LAYER,
    "aten.conv2d.default": _LAYER,
    "aten.conv2d.padding": _LAYER,
    "aten.conv3d.default": _LAYER,
    "aten.conv3d.padding": _LAYER,
    "aten.conv_transpose1d.default": _LAYER,
    "aten.conv_transpose2d.input": _LAYER,
    "aten.conv_transpose3d.input": _LAYER,
    "aten.convolution.default": _LAYER,
    "aten.grid_sampler.default": ("input", "grid"),
    "aten.binary_cross_entropy.default": ("self", "target"),
    "aten.index_add.default": ("self", "source"),
    "aten.index_copy.default": ("self", "source"),
    "aten.index_put.default": ("self", "values"),
}
# Half-precision values may have float32 parameters.
_NORMS = dict.fromkeys(("aten.layer_norm.default", "aten.group_norm.default"), (*_LAYER, "bias"))
_NO_INTEGERS = {
    "aten.adaptive_avg_pool2d.default": ("self",),
    "aten.gelu.default": ("self",),
    "aten.glu.default": ("self",),
    "aten.hardsigmoid.default": ("self",),
    "aten.hardswish.default": ("self",),
    "aten.log_softmax.int": ("self",),
    "aten.mish.default": ("self",),
    "aten.multinomial.default": ("self",),
    "aten.silu.default": ("self",),
    "aten.softmax.int": ("self",),
    "aten.softplus.default": ("self",),
    "aten.std.correction": ("self",),
    "aten.var.correction": ("self",),
}
_OPERANDS: Mapping[str, tuple[str, ...]] = {**_ONE_DTYPE, **_NORMS, **_NO_INTEGERS}
_AUTOCAST = "higher_order.wrap_with_autocast"


def diagnose_dtypes(program: ExportedProgram) -> Iterator[Diagnostic]:
    """Operators whose operands have dtypes that eager torch refuses on every device.

    Args:
        program: As captured, before decompositions.
    Reports:
        FE209, but not inside an autocast region, which casts the operands.
    """
    for visit in walk(program):
        operands = _operands(visit.node)
        if _is_refused(_plain_name(visit.node), operands) and not _is_autocast(visit):
            yield _diagnostic(visit, operands)


def _plain_name(node: Node) -> str:
    """The name of the operator, or of the one that an in-place operator is a variant of."""
    return operator_name(node).replace("_.", ".")


def _operands(node: Node) -> dict[str, torch.dtype]:
    """The dtypes that decide whether the operator runs, by argument name; none for other operators."""
    name = _plain_name(node)
    if name not in _OPERANDS:
        return {}
    arguments = argument_values(node.target, node.args, node.kwargs)
    is_cast = arguments.get("dtype") is not None  # `softmax(x, dtype=torch.float32)`
    if is_cast or (name == "aten.index_put.default" and _may_be_filled(arguments)):
        return {}
    tensors = {argument: _tensor(arguments.get(argument)) for argument in _OPERANDS[name]}
    if name == "aten.linear.default":
        tensors["bias"] = _bias(tensors["input"], _tensor(arguments.get("bias")))
    return {argument: tensor.dtype for argument, tensor in tensors.items() if tensor is not None}


def _tensor(argument: Any) -> torch.Tensor | None:
    value = argument.meta.get("val") if isinstance(argument, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _may_be_filled(arguments: Mapping[str, Any]) -> bool:
    """Whether `x[mask] = value` can be a `masked_fill`, which converts the value."""
    values = _tensor(arguments["values"])
    return values is not None and all(isinstance(size, int) and size == 1 for size in values.shape)


def _bias(values: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor | None:
    """The bias of `linear` if it needs the dtype of the values: where it is fused, and not added in-place."""
    if values is None or bias is None:
        return None
    is_static = all(isinstance(size, int) for size in values.shape)  # Asking a symbol would add a guard.
    is_fused = values.dim() == 2 or (values.dim() == 3 and is_static and values.is_contiguous())
    return bias if is_fused or not torch.can_cast(bias.dtype, values.dtype) else None


def _is_refused(name: str, operands: Mapping[str, torch.dtype]) -> bool:
    dtypes = set(operands.values())
    if name in _NO_INTEGERS:
        return any(not (dtype.is_floating_point or dtype.is_complex) for dtype in dtypes)
    if name in _NORMS and operands.get("input") in (torch.float16, torch.bfloat16):
        parameters = {dtype for argument, dtype in operands.items() if argument != "input"}
        return len(dtypes) > 1 and parameters != {torch.float32}
    return len(dtypes) > 1


def _is_autocast(visit: Visit) -> bool:
    """Whether autocast is on for a kind of device: the innermost region for that kind decides."""
    is_on: dict[Any, bool] = {}
    caller = visit.caller
    while caller is not None:
        if operator_name(caller.node) == _AUTOCAST:
            kind, _, enabled, *_ = caller.node.args
            is_on.setdefault(kind, bool(enabled))
        caller = caller.caller
    return any(is_on.values())


def _diagnostic(visit: Visit, operands: Mapping[str, torch.dtype]) -> Diagnostic:
    name = operator_name(visit.node)
    found = ", ".join(f"{argument} {_short(dtype)}" for argument, dtype in operands.items())
    return rule("FE209").diagnostic(
        labels=labels_at(visit.span, f"`{name}` gets {found}"),
        notes=(f"{visit.module_path or 'the model'}: dtype mismatch in `{name}`: {found}",),
        fix=Fix(f"convert before the call: {_conversions(operands)}"),
        node=visit.node.name,
        module_path=visit.module_path or None,
    )


def _conversions(operands: Mapping[str, torch.dtype]) -> str:
    """`input.to(torch.float32)`: the dtype of the weight, of what is written into, or of the widest kind."""
    if len(operands) == 1:
        wanted = torch.float32
    elif operands.keys() & {"weight", "source", "values"}:
        wanted = operands["weight" if "weight" in operands else "self"]
    else:
        wanted = max(operands.values(), key=lambda dtype: (dtype.is_complex, dtype.is_floating_point))
    return ", ".join(f"`{name}.to({wanted})`" for name, dtype in operands.items() if dtype != wanted)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
