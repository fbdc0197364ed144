"""Fix fully masked attention in ONNX: torch returns zeros in this case, but its translation to ONNX does not.

If all scores of a row are minus infinity, as for a padded token, attention in torch returns zeros. onnxscript
0.7.2 returns NaN if the mask is numeric. If the mask is Boolean, onnxscript adds the lowest number of the
dtype instead of minus infinity, so the row attends to everything equally. onnxscript's own check for NaN
replaces NaN with zeros, but would also hide NaN that comes from an input.

Source: onnxscript/function_libs/torch_lib/ops/nn.py, `_aten_scaled_dot_product_attention_bool_mask_onnx` and
`_aten_scaled_dot_product_attention_float_mask_onnx`. Remove this module when
tests/torch_facts/test_onnx_attention.py fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_MADE_OF = "pkg.torch.onnx.fx_node"
_TARGETS = "pkg.torch.onnx.class_hierarchy"
_ATTENTION = re.compile(r"'aten\._?scaled_dot_product_\w+\.default'\]$")


def hide_altogether(model: Any) -> None:
    """Make attention return zeros for fully masked rows. Modifies the model; call it before optimization."""
    for graph in (model.graph, *model.functions.values()):
        for softmax, added in list(_masked(graph)):
            tests = [use.node for use in softmax.outputs[0].uses() if use.node.op_type == "IsNaN"]
            mask = added.inputs[1].producer()
            if tests:
                mask.replace_input_with(2, _number(mask, float("-inf"), like=mask.inputs[1]))
                tests[0].outputs[0].replace_all_uses_with(_is_hidden(softmax))
            elif mask is None or mask.metadata_props.get(_MADE_OF) != softmax.metadata_props.get(_MADE_OF):
                # Otherwise, attention created the mask itself. Such a causal mask never masks a whole row.
                _give_zeros(softmax)


def _masked(graph: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the softmax node of each masked attention, and the node that adds the mask to the scores."""
    from onnx_ir.traversal import RecursiveGraphIterator

    for node in RecursiveGraphIterator(graph):
        if node.op_type == "Softmax" and _ATTENTION.search(node.metadata_props.get(_TARGETS, "")):
            added = node.inputs[0].producer()
            if added is not None and added.op_type == "Add":
                yield node, added


def _give_zeros(softmax: Any) -> None:
    weights = softmax.outputs[0]
    consumers = list(weights.uses())
    zero = _number(consumers[0].node, 0.0, like=weights)
    given = _before(consumers[0].node, "Where", [_is_hidden(softmax), zero, weights])
    for use in consumers:
        use.node.replace_input_with(use.idx, given)


def _is_hidden(softmax: Any) -> Any:
    """Insert nodes that compute whether the largest score of each row is minus infinity (false for NaN)."""
    import numpy

    scores = softmax.inputs[0]
    last = _constant(softmax, numpy.array([-1], dtype=numpy.int64))
    greatest = _before(softmax, "ReduceMax", [scores, last], keepdims=1)
    return _before(softmax, "Equal", [greatest, _number(softmax, float("-inf"), like=scores)])


def _number(node: Any, number: float, *, like: Any) -> Any:
    """Create a constant with the dtype of `like`. That dtype may not be known yet."""
    import numpy

    return _before(node, "CastLike", [_constant(node, numpy.array(number, dtype=numpy.float32)), like])


def _constant(node: Any, array: Any) -> Any:
    import onnx_ir as ir

    return _before(node, "Constant", [], value=ir.tensor(array))


def _before(node: Any, operator: str, inputs: list[Any], **attributes: Any) -> Any:
    """Insert a new node before an existing node, and return the new node's output."""
    import onnx_ir as ir

    new = ir.node(operator, inputs, attributes=attributes)
    node.graph.insert_before(node, new)
    return new.outputs[0]
