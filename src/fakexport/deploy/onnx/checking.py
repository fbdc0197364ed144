"""Check a new model with ONNX's own checker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fakexport.diagnose import labels_at
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.program import SourcePaths, span_of_trace
from fakexport.rules import rule

from ..artifact import CompileFailure, DeployError
from .messages import messages

# What torch notes at each node twice; together they are two thirds of a small file.
_REPEATED = ("pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.fx_node", "pkg.torch.onnx.name_scopes")
_TRACE = "pkg.torch.onnx.stack_trace"
_WRONG_NODE = re.compile(r"\(op_type:(?P<operator>\w+), node name: (?P<node>[^)]*)\): (?P<reason>[^\n]*)")


def check_model(model: Any) -> None:
    """Have ONNX check the graph, with shape inference, with its weights as inputs, so that they may be
    missing.

    Raises:
        CompileFailure: FE802: an ONNX operator does not accept its arguments, usually because of their dtype.
        DeployError: anything else is refused.
    """
    import onnx

    alone = onnx.ModelProto()
    alone.CopyFrom(model)
    del alone.graph.initializer[:]
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            weight = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            alone.graph.input.append(weight)
        else:
            alone.graph.initializer.append(tensor)
    try:
        onnx.checker.check_model(alone, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        if found := _WRONG_NODE.search(str(error)):
            raise CompileFailure((_finding(model, found),)) from error
        first = next(iter(str(error).strip().splitlines()), "")
        raise DeployError(f"ONNX's checker rejects the model that torch.onnx produced: {first}") from error


def _finding(model: Any, found: re.Match[str]) -> Diagnostic:
    nodes = (node for node in messages(model, "NodeProto") if node.name == found["node"])
    trace = next((entry.value for node in nodes for entry in node.metadata_props if entry.key == _TRACE), "")
    return rule("FE802").diagnostic(
        labels=labels_at(
            span_of_trace(trace), (f"the ONNX operator {found['operator']} does not accept this")
        ),
        notes=(f"ONNX's checker at node {found['node']}: {found['reason']}",),
        fix=Fix("convert to a dtype that ONNX supports for this operator, and back"),
        node=found["node"],
    )


def shorten_notes(model: Any) -> None:
    """Keep each node's modules and lines of source, without the folders of this machine."""
    paths = SourcePaths(Path.cwd())
    del model.graph.metadata_props[:]
    for node in messages(model, "NodeProto"):
        kept = [(entry.key, entry.value) for entry in node.metadata_props if entry.key not in _REPEATED]
        del node.metadata_props[:]
        for key, value in kept:
            node.metadata_props.add(key=key, value=paths.in_trace(value) if key == _TRACE else value)
