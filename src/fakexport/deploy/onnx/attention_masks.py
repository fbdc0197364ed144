"""Attention that is masked altogether: nothing in torch, and the mean of everything in torch's translation.

onnxscript 0.7.2 adds the least number of the dtype to scores that a Boolean mask hides, where torch adds
minus infinity. A row with nothing but hidden scores, as of a padded token, then attends to all of them alike;
torch gives zeros, and so does the translation's own test for NaN, once there is one.

Source: onnxscript/function_libs/torch_lib/ops/nn.py, `_aten_scaled_dot_product_attention_bool_mask_onnx`. It
can go when tests/torch_facts/test_onnx_attention.py fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["hide_altogether"]


def hide_altogether(model: Any) -> None:
    """Gives hidden scores of a graph of `onnx_ir` minus infinity, in place; before it is optimised."""
    import numpy
    import onnx_ir as ir

    for graph in (model.graph, *model.functions.values()):
        for where in list(_hiding(graph)):
            dtype = where.outputs[0].dtype or where.inputs[1].producer().attributes["value"].value.dtype
            infinity = ir.tensor(numpy.array(-numpy.inf, dtype=dtype.numpy()))
            constant = ir.node("Constant", [], attributes={"value": infinity})
            where.graph.insert_before(where, constant)
            where.replace_input_with(2, constant.outputs[0])


def _hiding(graph: Any) -> Iterator[Any]:
    """The nodes `Where(mask, 0, least)` whose sum with scores goes to a softmax that is tested for NaN."""
    from onnx_ir.traversal import RecursiveGraphIterator

    for test in RecursiveGraphIterator(graph):
        softmax = _made_by(test, 0, "Softmax") if test.op_type == "IsNaN" else None
        added = softmax and _made_by(softmax, 0, "Add")
        if added and (where := _made_by(added, 1, "Where")) is not None:
            yield where


def _made_by(node: Any, index: int, operator: str) -> Any:
    """The node behind an input, if it is of this operator."""
    value = node.inputs[index]
    made = None if value is None else value.producer()
    return made if made is not None and made.op_type == operator else None
