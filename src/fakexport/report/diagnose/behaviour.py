"""Detect behavior that differs between the exported program and the model code: rules FE9xx."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fakexport.exporting.capture import PythonEffect
from fakexport.exporting.interface import is_lifted
from fakexport.exporting.program import (
    Visit,
    input_nodes,
    module_path,
    named_devices,
    reading_span,
    shared_outputs,
    source_span,
    training_operators,
    written_inputs,
)
from fakexport.report.diagnose.labels import finding
from fakexport.report.diagnose.marked_code import replaced
from fakexport.rules.diagnostics import Diagnostic


def diagnose_behaviour(
    program: ExportedProgram, visits: Sequence[Visit], effects: Iterable[PythonEffect] = ()
) -> Iterator[Diagnostic]:
    """Report each way in which the program behaves differently from eager mode.

    Reports:
        FE901 to FE911, FE913 and FE914.
    """
    writes = tuple(written_inputs(program, visits))
    for used, argument in training_operators(visits):
        yield finding(
            "training",
            used.span,
            node=used.name,
            module_path=used.module_path,
            operator=used.operator,
            argument=argument,
        )
    for name, write in writes:
        yield finding(
            "written",
            write.span,
            node=write.name,
            module_path=write.module_path,
            operator=write.operator,
            name=name,
        )
    yield from map(_python, effects)
    yield from _generators(program)
    yield from _current_devices(visits)
    yield from _plain_attributes(program)
    for name, other, node in shared_outputs(program, {name for name, _ in writes}):
        yield finding("shared", source_span(node), module_path=module_path(node), name=name, other=other)


def _python(effect: PythonEffect) -> Diagnostic:
    kind = "default" if ".set_default_" in effect.what and effect.kind == "state" else effect.kind
    return finding(
        kind,
        effect.span,
        changes=replaced(effect.span, "None") if kind == "print" else (),
        module_path=effect.module_path,
        what=effect.what,
        place=f"{effect.module_path}.{effect.what}".lstrip("."),
        root=effect.what.partition(".")[0],
    )


def _generators(program: ExportedProgram) -> Iterator[Diagnostic]:
    """Report `torch.Generator` objects that `forward` creates, and constants with a generator's state."""
    constants = {
        spec.arg.name: program.constants[spec.target]
        for spec in program.graph_signature.input_specs
        if spec.target in program.constants
    }
    state = torch.default_generator.get_state()
    for node in program.graph.nodes:
        for value in (constants.get(each.name) for each in node.all_input_nodes):
            if isinstance(value, torch.Generator):
                yield finding("generator", source_span(node), node=node.name)
            elif isinstance(value, torch.Tensor) and (value.dtype, value.shape) == (state.dtype, state.shape):
                yield finding("generator_state", source_span(node), node=node.name)


def _current_devices(visits: Iterable[Visit]) -> Iterator[Diagnostic]:
    """Report devices without an index: the program uses the device that is current in each call."""
    for node in (visit.node for visit in visits):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.device.index or value.device.type == "cpu":
            continue
        if value.device.type in named_devices(node):
            device, usual = str(value.device), f"{value.device.type}:0"
            yield finding("current_device", source_span(node), node=node.name, device=device, usual=usual)


def _plain_attributes(program: ExportedProgram) -> Iterator[Diagnostic]:
    for spec, node in input_nodes(program):
        is_literal = is_lifted(spec.target or "")
        if spec.kind is not InputKind.CONSTANT_TENSOR or spec.target is None or is_literal:
            continue
        path, _, name = spec.target.rpartition(".")
        yield finding("plain_attribute", reading_span(node), module_path=path, name=name, target=spec.target)
