"""Products of groups of rows, the experts of a mixture, in ONNX: each group is a slice of the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fakexport._torch.grouped_products import TORCHS, TRANSFORMERS
from fakexport._torch.operator_registry import registered_overload

_END = 2**63 - 1


def translations() -> Mapping[Any, Callable[..., Any]]:
    """Return the translation of each operator of grouped products that is registered.

    Rows beyond the last group are zeros. Needs onnxscript.
    """
    from onnxscript import opset18

    op: Any = opset18

    def product(rows: Any, matrices: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
        if offs is None and bias is None and out_dtype is None:
            return op.MatMul(rows, matrices)
        if bias is not None or out_dtype is not None or len(rows.shape) != 2 or len(matrices.shape) != 3:
            raise NotImplementedError("only groups of rows with one matrix each are translated")
        groups = matrices.shape[0]
        ends = op.Cast(offs, to=7)  # 7 is int64.
        first = op.Constant(value_ints=[0])
        axis = op.Constant(value_ints=[0])
        made = []
        for index in range(groups):
            end = op.Gather(ends, op.Constant(value_ints=[index]), axis=0)
            own = op.Gather(matrices, op.Constant(value_int=index), axis=0)
            made.append(op.MatMul(op.Slice(rows, first, end, axis), own))
            first = end
        rest = op.Slice(rows, first, op.Constant(value_ints=[_END]), axis)
        size = op.Concat(op.Shape(rest, start=0, end=1), op.Shape(matrices, start=2, end=3), axis=0)
        zero = op.CastLike(op.Constant(value_float=0.0), rows)
        return op.Concat(*made, op.Expand(zero, size), axis=0)

    found = {name: registered_overload(*name.split(".")) for name in (TORCHS, TRANSFORMERS)}
    return {operator: product for operator in found.values() if operator is not None}
