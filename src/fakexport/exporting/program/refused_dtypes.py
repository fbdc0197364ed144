"""Detect operators that reject the dtypes of their operands at run time, but not during a trace.

In torch 2.13, the fake kernels of these operators do not compare dtypes, but the real kernels do. A dtype
that only one device type rejects is reported only for operands on that device type. For example, CUDA rejects
a product of integers, and the CPU rejects batch norm with parameters of a different dtype (it is unknown
whether CUDA also rejects it).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node

from fakexport._torch.operators.operator_schema import argument_names, argument_values
from fakexport.exporting.program.node_names import operator_name
from fakexport.exporting.program.tensor_spec import plain_name
from fakexport.exporting.program.walk import Visit

_HALVES = {torch.bfloat16: "Hb", torch.float16: "H"}
_ARITHMETIC = ("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.addcmul.default")
_AUTOCAST = "higher_order.wrap_with_autocast"


def _tables() -> dict[str, dict[str, str]]:
    """Return the tables of `refused_dtypes.toml`. In each table, all rows of an operator are combined."""
    found: dict[str, dict[str, str]] = {}
    for table, rows in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items():
        by_name = found[table] = {}
        for row, names in rows.items():
            for name in names.split():
                by_name[f"aten.{name}"] = by_name.get(f"aten.{name}", "") + row
    return found


_TABLES = _tables()
_NORMS = _TABLES["norms"] | _TABLES["norms_on_cpu"]
_OPERANDS: Mapping[str, str] = _TABLES["one_dtype"] | _NORMS


@dataclass(frozen=True)
class RefusedDtypes:
    """Operands with dtypes that an operator rejects.

    Args:
        operands: The rejected dtypes, by argument name.
        fix: Code that converts the operands to accepted dtypes.
    """

    operands: Mapping[str, torch.dtype]
    fix: str

    @property
    def text(self) -> str:
        """The rejected dtypes as text: `self bfloat16, other int64`."""
        return ", ".join(f"{argument} {plain_name(dtype)}" for argument, dtype in self.operands.items())


@dataclass(frozen=True)
class _Call:
    """One call of an operator.

    Args:
        node: The node of the call.
        name: The operator, or the functional variant of an in-place operator.
        arguments: The arguments by name, including defaults.
    """

    node: Node
    name: str
    arguments: Mapping[str, Any]

    def tensor(self, argument: str) -> torch.Tensor | None:
        """Return the value of a tensor argument, or the first tensor of a list. None for other arguments."""
        return _tensor(self.arguments.get(argument))

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensor arguments in the order of the schema. The first one determines the kernel."""
        names = argument_names(self.node.target)
        found = {name: _tensor(self.arguments.get(name)) for name in names}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @property
    def device_type(self) -> str:
        return next((tensor.device.type for tensor in self.tensors.values()), "")


def refused_dtypes(visit: Visit) -> RefusedDtypes | None:
    """Return the operand dtypes that a node's operator rejects on the devices of its operands, or None.

    Nodes inside of an autocast region are not checked, because autocast casts the operands.
    """
    found = _refusal(visit.node)
    return None if found is None or _is_autocast(visit) else found


def _refusal(node: Node) -> RefusedDtypes | None:
    name = operator_name(node)
    if not name.startswith("aten."):
        return None
    arguments = argument_values(node.target, node.args, node.kwargs)
    if arguments.get("dtype") is not None:
        return None  # The operator casts its operand: `softmax(x, dtype=torch.float32)`.
    call = _Call(node, name.replace("_.", "."), arguments)
    return next((found for check in _CHECKS if (found := check(call)) is not None), None)


def _kind_refused(call: _Call) -> RefusedDtypes | None:
    """Check for operators without a kernel for complex, integer, bool or floating point dtypes."""
    # For devices other than CPU and CUDA, only dtypes that both CPU and CUDA reject are reported.
    kinds = _TABLES["anywhere"].get(call.name, "") + _TABLES.get(call.device_type, {}).get(call.name, "")
    tensors = call.tensors if kinds else {}
    if not tensors:
        return None
    dtype = _computed(call, list(tensors.values()))
    if dtype is None or set(_kind(dtype) + _HALVES.get(dtype, "")).isdisjoint(kinds):
        return None
    operands = {name: t.dtype for name, t in tensors.items() if _kind(t.dtype) == _kind(dtype)}
    return RefusedDtypes(operands, ", ".join(f"`{_accepted(name, dtype, kinds)}`" for name in operands))


def _computed(call: _Call, tensors: list[torch.Tensor]) -> torch.dtype | None:
    """Return the dtype in which the kernel computes: the promoted dtype, or the first argument's dtype."""
    if len(tensors) == 1 or torch.Tag.pointwise not in call.node.target.tags:  # type: ignore[union-attr]
        return tensors[0].dtype
    if len(tensors) == 2:
        return torch.result_type(*tensors)
    dtypes = {tensor.dtype for tensor in tensors}
    return dtypes.pop() if len(dtypes) == 1 else None


def _kind(dtype: torch.dtype) -> str:
    """Return `C` for complex, `F` for floating point, `B` for bool, `I` for integer dtypes."""
    if dtype is torch.bool:
        return "B"
    return "C" if dtype.is_complex else "F" if dtype.is_floating_point else "I"


def _accepted(name: str, dtype: torch.dtype, kinds: str) -> str:
    match _kind(dtype):
        case "C":
            return f"{name}.real` or `{name}.abs()"
        case "F" if "F" in kinds:
            return f"{name}.to(torch.int64)"
        case "F":
            return f"{name}.to(torch.float32)"
    return f"{name}.to({torch.float32 if 'I' in kinds else torch.int64})"


def _mixed(call: _Call) -> RefusedDtypes | None:
    """Check for operands with different dtypes, for an operator that requires a common dtype."""
    if call.name not in _OPERANDS or (call.name in _TABLES["norms_on_cpu"] and call.device_type != "cpu"):
        return None
    if call.name == "aten.index_put.default" and _may_be_filled(call.tensor("values")):
        return None
    if call.name == "aten.cross_entropy_loss.default" and not _is_of_classes(call):
        return None
    tensors = {argument: call.tensor(argument) for argument in _OPERANDS[call.name].split()}
    if call.name == "aten.linear.default":
        tensors["bias"] = _bias(tensors["input"], call.tensor("bias"))
    operands = {argument: tensor.dtype for argument, tensor in tensors.items() if tensor is not None}
    return RefusedDtypes(operands, _conversions(operands)) if _is_mixed(call.name, operands) else None


def _is_of_classes(call: _Call) -> bool:
    """Return whether the targets of a loss are class indices.

    Otherwise, the targets are probabilities. A multiplication with them promotes dtypes, so their dtype may
    be different.
    """
    values, target = call.tensor("self"), call.tensor("target")
    return values is not None and target is not None and values.dim() == target.dim() + 1


def _distances_refused(call: _Call) -> RefusedDtypes | None:
    """Check for `cdist` in half precision. It only works for Euclidean distances that are computed by `mm`.

    Source: `aten/src/ATen/native/Distance.cpp:cdist_impl`. It uses a matrix product (`mm`) on request, or if
        one of the operands has more than 25 points.
    """
    sides = call.tensors if call.name == "aten.cdist.default" else {}
    operands = {name: tensor.dtype for name, tensor in sides.items()}
    if not operands or not {torch.bfloat16, torch.float16}.intersection(operands.values()):
        return None
    mode, points = call.arguments.get("compute_mode") or 0, [tensor.shape[-2] for tensor in sides.values()]
    is_small = all(isinstance(count, int) and count <= 25 for count in points)
    if call.arguments.get("p") == 2 and (mode == 1 or (mode == 0 and not is_small)):
        return None
    return RefusedDtypes(operands, ", ".join(f"`{name}.to(torch.float32)`" for name in operands))


def _wrong_choice(call: _Call) -> RefusedDtypes | None:
    argument, *allowed = _TABLES["choosing"].get(call.name, "").split() or [""]
    tensor = call.tensor(argument)
    if tensor is None or plain_name(tensor.dtype) in allowed:
        return None
    return RefusedDtypes({argument: tensor.dtype}, f"`{argument}.to(torch.{allowed[0]})`")


def _not_kept(call: _Call) -> RefusedDtypes | None:
    """Check for an in-place operator whose result does not fit its operand's dtype: `integers.mul_(0.5)`."""
    values, other = call.tensor("self"), call.arguments.get("other", call.arguments.get("tensor1"))
    is_in_place = operator_name(call.node) != call.name
    operand = _tensor(other) if isinstance(other, Node) else other
    if not is_in_place or call.name not in _ARITHMETIC or values is None or operand is None:
        return None
    if not isinstance(operand, (torch.Tensor, bool, int, float, complex)):
        return None
    result = torch.result_type(values, operand)
    if torch.can_cast(result, values.dtype):
        return None
    return RefusedDtypes({"self": values.dtype, "result": result}, f"`self.to({result})`")


def _bool_subtracted(call: _Call) -> RefusedDtypes | None:
    if call.name not in ("aten.sub.Tensor", "aten.rsub.Scalar", "aten.rsub.Tensor"):
        return None
    operands = {name: t.dtype for name, t in call.tensors.items() if t.dtype is torch.bool}
    fix = ", ".join(f"`{name}.to(torch.int64)`" for name in operands)
    return RefusedDtypes(operands, fix) if operands else None


_CHECKS: tuple[Callable[[_Call], RefusedDtypes | None], ...] = (
    _mixed,
    _kind_refused,
    _distances_refused,
    _wrong_choice,
    _not_kept,
    _bool_subtracted,
)


def _tensor(argument: Any) -> torch.Tensor | None:
    if isinstance(argument, (list, tuple)):
        return next((found for item in argument if (found := _tensor(item)) is not None), None)
    value = argument.meta.get("val") if isinstance(argument, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _may_be_filled(values: torch.Tensor | None) -> bool:
    """Return whether torch may run `x[mask] = value` as `masked_fill`, which converts the value's dtype."""
    return values is not None and all(isinstance(size, int) and size == 1 for size in values.shape)


def _bias(values: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor | None:
    """Return the bias if it must have the dtype of the values, as in a fused `linear`; otherwise None."""
    if values is None or bias is None:
        return None
    is_static = all(isinstance(size, int) for size in values.shape)  # Comparing a symbol would add a guard.
    is_fused = values.dim() == 2 or (values.dim() == 3 and is_static and values.is_contiguous())
    return bias if is_fused or not torch.can_cast(bias.dtype, values.dtype) else None


def _is_mixed(name: str, operands: Mapping[str, torch.dtype]) -> bool:
    dtypes = set(operands.values())
    if name in _NORMS and operands.get("input") in (torch.float16, torch.bfloat16):
        parameters = {dtype for argument, dtype in operands.items() if argument != "input"}
        return len(dtypes) > 1 and parameters != {torch.float32}
    return len(dtypes) > 1


def _conversions(operands: Mapping[str, torch.dtype]) -> str:
    """Return code such as `input.to(torch.float32)` that converts the operands to a common dtype.

    The common dtype is the dtype of the weight or of the written tensor, or the widest dtype if there is
    neither.
    """
    if operands.keys() & {"weight", "source", "values"}:
        wanted = operands["weight" if "weight" in operands else "self"]
    else:
        wanted = max(operands.values(), key=lambda dtype: (dtype.is_complex, dtype.is_floating_point))
    return ", ".join(f"`{name}.to({wanted})`" for name, dtype in operands.items() if dtype != wanted)


def _is_autocast(visit: Visit) -> bool:
    """Return whether autocast is enabled at a node for any device type. Inner regions override outer ones."""
    is_on: dict[Any, bool] = {}
    caller = visit.caller
    while caller is not None:
        if operator_name(caller.node) == _AUTOCAST:
            kind, _, enabled, *_ = caller.node.args
            is_on.setdefault(kind, bool(enabled))
        caller = caller.caller
    return any(is_on.values())
