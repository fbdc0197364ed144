"""Holds a retargeted program against the program that an export for the other device gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from torch.export import ExportedProgram

from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import build
from fakexport.exporting.capture import capture
from fakexport.exporting.interface import ProgramDifference
from fakexport.exporting.program import RetargetError, diff, retargeted
from fakexport.exporting.program.retargeting.retarget import Retargeted
from fakexport.models.sources import Source, resolve
from tests.architectures import Architecture
from tests.same_nodes import nodes_equal

__all__ = ["ATTENTION", "CASTS", "EXPERTS", "LITERALS", "both_programs", "differences"]

ATTENTION = "attention takes another kernel there, and the export copies and asserts elsewhere"
EXPERTS = (
    "transformers asks for the device and counts the tokens of experts as int32 on a GPU, float on a CPU"
)
CASTS = "the model asks whether it is on the CPU, and casts to float32 there"
LITERALS = (
    "the model makes some tensors on the CPU without saying so, which looks like the device of its inputs"
)

_CASTING = {"aten.to.dtype", "aten._assert_tensor_metadata.default"}
_BEHIND_ATTENTION = {
    "aten.contiguous.default",
    "aten._assert_scalar.default",
    "operator.eq",
    "operator.or_",
}


@dataclass(frozen=True)
class Programs:
    """The programs of one model for the CPU and for an H100."""

    cpu: ExportedProgram
    gpu: ExportedProgram


def both_programs(architecture: Architecture, folder: Path) -> Programs:
    """Exports a small model for both devices; skips the test where it does not export."""
    if not architecture.is_available:
        pytest.skip(f"this transformers has no {architecture}")
    source = resolve(architecture.source(folder))
    return Programs(_program(source, "cpu"), _program(source, "H100"))


def differences(programs: Programs) -> set[str]:
    """Why retargeted programs are not the exported ones, both ways; empty where they are, node for node."""
    up = _differences(programs.cpu, {"cpu": "cuda:0"}, programs.gpu, "H100")
    down = _differences(programs.gpu, {"cuda:0": "cpu"}, programs.cpu, "cpu")
    return {*up, *down}


def _program(source: Source, topology: str) -> ExportedProgram:
    with emulate(topology) as devices:
        built = build(source.factory, device_map=devices.default_device)
        with built.mode:
            inputs = source.example_inputs(built.module, built.placement.input_device, None)
        tracing = partial(source.tracing, built.module, inputs)
        captured = capture(built.module, inputs.args, inputs.kwargs, tracing=tracing)
    if captured.program is None:
        assert captured.failure is not None
        pytest.skip(f"it does not export for {topology}: {captured.failure.messages[0][:80]}")
    return captured.program


def _differences(
    program: ExportedProgram, device_map: dict[str, str], native: ExportedProgram, topology: str
) -> Iterator[str]:
    try:
        made = retargeted(program, device_map, topology=topology)
    except RetargetError as error:
        is_histogram = all("aten.histc.default fails" in found.notes[0] for found in error.diagnostics)
        yield EXPERTS if is_histogram else str(error)
        return
    yield from made.unproven
    if nodes_equal(made.program, native, limit=1):
        yield from _reasons(made, native)


def _reasons(made: Retargeted, native: ExportedProgram) -> Iterator[str]:
    """The reasons, each with its evidence; anything without one is a sentence of its own."""
    found = diff(made.program, native)
    operators = {group.operator for group in (*found.nodes_added, *found.nodes_removed)}
    is_counting = any(
        change.nodes.operator == "aten.to.dtype" and "torch.int32" in (change.a + change.b)
        for change in found.changes
    )
    is_laid_out = any(note.startswith("aten.scaled_dot_product_attention") for note in made.notes)
    if is_counting:
        yield EXPERTS
    if operators and operators <= _BEHIND_ATTENTION and is_laid_out:
        yield ATTENTION
    elif operators == _CASTING and _is_more_on_cpu(made, found):
        yield CASTS
    elif operators:
        yield f"only in one of them: {sorted(operators)}"
    if found.devices:
        assert {(change.device_a, change.device_b) for change in found.devices} == {("cuda:0", "cpu")}
        yield LITERALS
    if found.is_identical_but_for_devices or is_counting or operators:
        return
    yield f"changed: {[(change.nodes.operator, change.field) for change in found.changes][:4]}"


def _is_more_on_cpu(made: Retargeted, found: ProgramDifference) -> bool:
    """Whether it is the program exported for the CPU that has more nodes."""
    return bool(found.nodes_added if made.devices == ("cpu",) else found.nodes_removed)
