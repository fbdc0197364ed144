"""Convert a program to an ONNX graph without its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument

from fakexport._torch.symbolic_numbers import pending_symbols_dropped
from fakexport.fake import is_fake
from fakexport.history import value_of
from fakexport.program import derived_program, has_value, user_outputs

from ..artifact import CompileFailure, DeployError
from ..signature import Signature
from ..unsupported import assertion_notes, findings_of_objects
from .attention_masks import hide_altogether
from .findings import findings_of_failure, findings_of_program, innermost

_DRAWS = {
    *("Bernoulli", "Dropout", "Multinomial"),
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
}


@dataclass(frozen=True)
class Converted:
    """A program as a graph of `onnx_ir`, in which `weights` are the initializers without a value.

    `outputs` are the names in the graph of the signature's output tensors; `notes` say how it differs.
    """

    model: Any
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...]


def convert(
    program: ExportedProgram,
    signature: Signature,
    translations: Mapping[Any, Callable[..., Any]],
) -> Converted:
    """Return the ONNX graph of a program: the same for any weights, or none.

    Nothing is folded into the weights, so that others can be bound later; ONNX Runtime folds when it loads.

    Raises:
        CompileFailure: FE802.
        DeployError: the exporter failed for another reason.
    """
    import onnxscript.optimizer
    from torch.onnx import OnnxExporterError

    if held := tuple(findings_of_objects(program, "FE802", "ONNX")):  # The exporter fails at the first one.
        raise CompileFailure(held)
    try:
        with pending_symbols_dropped(program):  # A conversion that fails leaves some.
            exported = torch.onnx.export(
                _plain(program), optimize=False, verbose=False, custom_translation_table=dict(translations)
            )
    except OnnxExporterError as error:
        if found := findings_of_failure(_plain(program), signature, error, translations):
            raise CompileFailure(found) from error
        raise DeployError(f"torch.onnx cannot convert the program: {innermost(error)}") from error
    assert exported is not None  # None is for the exporter of old.
    assert exported.exported_program is not None
    if found := tuple(findings_of_program(exported.exported_program, signature)):
        raise CompileFailure(found)
    model: Any = exported.model
    _leave_out_values(model, program)
    hide_altogether(model)
    try:
        onnxscript.optimizer.optimize(model)
    except Exception as error:
        raise DeployError(f"onnxscript cannot simplify the graph: {innermost(error)}") from error
    named = _name(model, program, signature)
    return Converted(
        model=model,
        weights=tuple(name for name, value in model.graph.initializers.items() if value.const_value is None),
        outputs=tuple(named[output.name] for output in signature.outputs if output.is_tensor),
        notes=tuple(_notes(program, model)),
    )


def _plain(program: ExportedProgram) -> ExportedProgram:
    """Return a copy that the exporter accepts: no `WeightlessProgram`, and with known constants."""
    constants = {
        name: value_of(constant) if is_fake(constant) and has_value(constant) else constant
        for name, constant in program.constants.items()
    }
    return derived_program(program, state_dict=program.state_dict, constants=constants)


def _leave_out_values(model: Any, program: ExportedProgram) -> None:
    """Remove the values of weights from the graph, and placeholders of unknown constants."""
    for name, initializer in model.graph.initializers.items():
        if name in program.state_dict or is_fake(program.constants.get(name)):
            initializer.const_value = None


def _name(model: Any, program: ExportedProgram, signature: Signature) -> dict[str, str]:
    """Rename inputs and outputs as in the program; an output's name that is taken gets a suffix."""
    from onnx_ir.traversal import RecursiveGraphIterator

    graph = model.graph
    wanted = [name for name, each in user_outputs(program) if not isinstance(each, ConstantArgument)]
    for value, tensor in zip(graph.inputs, signature.inputs, strict=True):
        value.name = tensor.name  # The optimiser renames an input that is an output as well.
    taken = {value.name for value in graph.inputs} | set(graph.initializers)
    names: dict[str, str] = {}
    for name in wanted:
        names[name] = _free(name, "_output", taken)
        taken.add(names[name])
    inner = [value for node in RecursiveGraphIterator(graph) for value in node.outputs]
    known = taken | {value.name for value in inner}
    for value in inner:
        if value.name in names.values():
            value.name = _free(value.name, "_value", known)
            known.add(value.name)
    for index, name in enumerate(wanted):
        if graph.outputs[index].producer() is None:  # An input or a weight, which keeps its own name.
            _pass_through(graph, index)
        graph.outputs[index].name = names[name]
    return names


def _pass_through(graph: Any, index: int) -> None:
    """Make an output of the graph a value of its own."""
    import onnx_ir as ir

    source = graph.outputs[index]
    passed = ir.Value(name=None, shape=source.shape, type=source.type)
    graph.append(ir.Node("", "Identity", [source], outputs=[passed]))
    graph.outputs[index] = passed


def _free(name: str, ending: str, taken: set[str]) -> str:
    while name in taken:
        name += ending
    return name


def _notes(program: ExportedProgram, model: Any) -> Iterator[str]:
    from onnx_ir.traversal import RecursiveGraphIterator

    yield from assertion_notes(program, "ONNX")
    if draws := sorted({node.op_type for node in RecursiveGraphIterator(model.graph)} & _DRAWS):
        yield f"the runtime that executes the file draws its own random numbers: {', '.join(draws)}"
