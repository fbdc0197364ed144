"""Convert a program to an ONNX graph without its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument

from fakexport._torch.tracing.symbolic_numbers import pending_symbols_dropped
from fakexport.emulation.fake import is_fake
from fakexport.emulation.history import constant_value
from fakexport.exporting.program import derived_program, facts_of, has_value, user_outputs

from ..artifact import CompileFailure, DeployError
from ..signature import Signature
from ..unsupported import assertion_notes, findings_of_objects
from .attention_masks import hide_altogether
from .findings import findings_of_failure, findings_of_program, innermost
from .optimum_names import arrange, axis_names, rename_axes
from .quick_rewriting import rules_tried_where_they_match

_DRAWS = {
    *("Bernoulli", "Dropout", "Multinomial"),
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
}


@dataclass(frozen=True)
class Converted:
    """A program as an `onnx_ir` model.

    `weights` are the names of initializers without a value. `outputs` are the names that the signature's
    output tensors have in the graph. `notes` are sentences about differences from the program.
    """

    model: Any
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...]


def convert(
    program: ExportedProgram,
    signature: Signature,
    translations: Mapping[Any, Callable[..., Any]],
    *,
    named: Signature | None = None,
    opset: int | None = None,
) -> Converted:
    """Convert a program to an ONNX graph, which is the same with and without weights.

    Constants are not folded into weights, so that different weights can be bound later. ONNX Runtime folds
    constants when it loads the file. `named` is the signature with the names that Optimum uses, to give
    these to inputs, outputs and axes. Raises as `compile_onnx` does.
    """
    import onnxscript.optimizer
    from torch.onnx import OnnxExporterError

    # Report all objects here; the exporter would stop at the first one.
    if held := tuple(findings_of_objects(program, "FE802", "ONNX")):
        raise CompileFailure(held)
    try:
        # A failed conversion leaves pending symbols behind. The exporter decomposes the program without
        # gradients, and runs the result with them: attention then has a different layout if its mask is
        # computed from a parameter, as in T5, and a `view` of it fails (torch 2.13).
        with pending_symbols_dropped(program), torch.no_grad():
            exported = torch.onnx.export(
                _plain(program),
                optimize=False,
                verbose=False,
                opset_version=opset,
                custom_translation_table=dict(translations),
            )
    except OnnxExporterError as error:
        if found := findings_of_failure(_plain(program), signature, error, translations):
            raise CompileFailure(found) from error
        raise DeployError(f"torch.onnx cannot convert the program: {innermost(error)}") from error
    assert exported is not None  # Only torch's old exporter returns None.
    assert exported.exported_program is not None
    if found := tuple(findings_of_program(exported.exported_program, signature)):
        raise CompileFailure(found)
    model: Any = exported.model
    _leave_out_values(model, program)
    hide_altogether(model)
    try:
        with rules_tried_where_they_match():
            onnxscript.optimizer.optimize(model)
    except Exception as error:
        raise DeployError(f"onnxscript cannot simplify the graph: {innermost(error)}") from error
    names = _name(model, program, named or signature)
    if named is not None:
        arrange(model)
    facts = facts_of(program)
    rename_axes(model, {} if named is None else axis_names(model, facts.call, facts.source))
    return Converted(
        model=model,
        weights=tuple(name for name, value in model.graph.initializers.items() if value.const_value is None),
        outputs=tuple(names[output.name] for output in (named or signature).outputs if output.is_tensor),
        notes=tuple(_notes(program, model)),
    )


def _plain(program: ExportedProgram) -> ExportedProgram:
    """Return a copy of the program for torch's exporter, with real values for known constants."""
    constants = {
        name: constant_value(constant) if is_fake(constant) and has_value(constant) else constant
        for name, constant in program.constants.items()
    }
    return derived_program(program, state_dict=program.state_dict, constants=constants)


def _leave_out_values(model: Any, program: ExportedProgram) -> None:
    """Remove the values of weights and of constants without a value from the graph."""
    for name, initializer in model.graph.initializers.items():
        if name in program.state_dict or is_fake(program.constants.get(name)):
            initializer.const_value = None


def _name(model: Any, program: ExportedProgram, signature: Signature) -> dict[str, str]:
    """Give inputs and outputs their names in the signature; a name that is in use gets a suffix."""
    from onnx_ir.passes.common import NameFixPass

    graph = model.graph
    for value, tensor in zip(graph.inputs, signature.inputs, strict=True):
        value.name = tensor.name  # The optimizer renames inputs that are also outputs.
    taken = {value.name for value in graph.inputs} | set(graph.initializers)
    names: dict[str, str] = {}
    leaves = zip(signature.outputs, user_outputs(program), strict=True)
    wanted = [leaf.name for leaf, (_, each) in leaves if not isinstance(each, ConstantArgument)]
    for index, name in enumerate(wanted):
        names[name] = name
        while names[name] in taken:
            names[name] += "_output"
        taken.add(names[name])
        if graph.outputs[index].producer() is None:  # It is a weight, which keeps its own name.
            _pass_through(graph, index)
        graph.outputs[index].name = names[name]
    NameFixPass()(model)  # If names clash, values inside the graph are renamed.
    return names


def _pass_through(graph: Any, index: int) -> None:
    """Insert an `Identity` node, so that an output of the graph is a separate value."""
    import onnx_ir as ir

    source = graph.outputs[index]
    passed = ir.node("Identity", [source])
    passed.outputs[0].shape, passed.outputs[0].type = source.shape, source.type
    graph.append(passed)
    graph.outputs[index] = passed.outputs[0]


def _notes(program: ExportedProgram, model: Any) -> Iterator[str]:
    from onnx_ir.traversal import RecursiveGraphIterator

    yield from assertion_notes(program, "ONNX")
    if draws := sorted({node.op_type for node in RecursiveGraphIterator(model.graph)} & _DRAWS):
        yield f"the runtime that executes the file draws its own random numbers: {', '.join(draws)}"
