"""Find all parts of a program that ONNX cannot express (FE802), instead of only the first one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, TensorArgument
from torch.fx import Node

from fakexport._torch.operators.onnx_translations import node_of_failure, prepared, untranslated_nodes
from fakexport.error import type_and_line
from fakexport.exporting.program import operator_name, target_name
from fakexport.rules.diagnostics import Diagnostic, Fix

from ..signature import Signature
from ..unsupported import finding_at, operator_finding

_WRITES = {
    OutputKind.BUFFER_MUTATION: "the buffer",
    OutputKind.PARAMETER_MUTATION: "the parameter",
    OutputKind.USER_INPUT_MUTATION: "the input",
}


def findings_of_program(program: ExportedProgram, signature: Signature) -> Iterator[Diagnostic]:
    """Yield findings for parts of a program that torch's exporter silently drops or changes.

    The exporter drops mutations of buffers and inputs, and converts complex inputs and outputs to pairs of
    real numbers.
    """
    nodes = {node.name: node for node in program.graph.nodes}
    for spec in program.graph_signature.output_specs:
        if spec.kind in _WRITES:
            node = nodes[spec.arg.name]
            what = f"{_WRITES[spec.kind]} {spec.target}"
            yield finding_at(
                "FE802",
                node,
                f"{what} is written here",
                notes=(f"{what} would keep its old value in the next call: ONNX has no state",),
                fix=Fix("return it as an output, and pass it as an input to the next call"),
                fault="model",
            )
        elif isinstance(spec.arg, TensorArgument) and nodes[spec.arg.name].meta["val"].dtype.is_complex:
            yield _complex(nodes[spec.arg.name], "output")
    for tensor in signature.inputs:
        if getattr(torch, tensor.dtype).is_complex:
            yield _complex(nodes[tensor.name], "input")


def findings_of_failure(
    program: ExportedProgram,
    signature: Signature,
    error: Exception,
    translations: Mapping[Any, Callable[..., Any]],
) -> tuple[Diagnostic, ...]:
    """Return everything that blocks the conversion: operators without a translation, and mutations.

    If all operators have a translation, the finding is at the node where the exporter stopped.
    """
    stopped = node_of_failure(error)
    if stopped is None:
        return ()
    ready = prepared(program, translations)
    missing = tuple(_untranslated(ready, translations))
    return (*findings_of_program(ready, signature), *(missing or (_stopped(stopped, error),)))


def _untranslated(
    program: ExportedProgram, translations: Mapping[Any, Callable[..., Any]]
) -> Iterator[Diagnostic]:
    nodes: dict[str, list[Node]] = {}
    for node in untranslated_nodes(program, translations):
        nodes.setdefault(_name(node), []).append(node)
    for name, found in nodes.items():
        yield operator_finding(
            "FE802",
            found,
            name,
            "has no translation to ONNX",
            (f"{name} at node {found[0].name} is not an operator that torch.onnx translates",),
            "use other operators",
            f"pass a translation to compile_onnx(..., custom_translation_table={{torch.ops.{name}: ...}})",
        )


def _name(node: Node) -> str:
    """Return the name of a node's operator, or of the wrapped operator if an effect wrapper calls it."""
    name = operator_name(node)
    return target_name(node.args[1]) if name == "higher_order.with_effects" else name


def _stopped(node: Node, error: BaseException) -> Diagnostic:
    name = operator_name(node)
    label = f"{name} cannot be translated with these arguments"
    note = f"torch.onnx at node {node.name}, {name}: {innermost(error)}"
    return finding_at("FE802", node, label, notes=(note,), fix=Fix("use other operators"))


def innermost(error: BaseException) -> str:
    """Return the first error in a chain of causes, as a single line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return type_and_line(error)


def _complex(node: Node, what: str) -> Diagnostic:
    return finding_at(
        "FE802",
        node,
        "this tensor is complex",
        notes=(f"the {what} {node.name} is complex, but ONNX operators support only real numbers",),
        fix=Fix(f"make the {what} real: use torch.view_as_real and torch.view_as_complex"),
        fault="model",
    )
