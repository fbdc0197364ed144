"""Move a program to devices other than the ones for which it was exported."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import GraphModule, Node

from fakexport._torch.emulation.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    fake_elsewhere,
    mode_of,
    new_fake_mode,
)
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._torch.tracing.script_objects import fake_object
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.emulation.devices import Topology, emulate, emulated_topology, exists_here
from fakexport.emulation.fake import is_fake
from fakexport.error import FakexportError, InvalidType
from fakexport.exporting.program.derived_program import derived_program
from fakexport.exporting.program.devices import devices_of_program
from fakexport.exporting.program.node_names import module_path
from fakexport.exporting.program.program_copy import copied_graph
from fakexport.exporting.program.program_facts import ProgramFacts, facts_of, keep_facts
from fakexport.exporting.program.retargeting.boundaries import Boundaries
from fakexport.exporting.program.retargeting.device_move import ModuleMove, Move, parse_move
from fakexport.exporting.program.retargeting.findings import (
    failures,
    kernel_failures,
    layout_notes,
    unproven_text,
)
from fakexport.exporting.program.retargeting.moved_tensors import MovedTensors
from fakexport.exporting.program.retargeting.rerun import Rerun
from fakexport.exporting.program.stand_in_inputs import give_stand_in_inputs, has_stand_in_inputs
from fakexport.exporting.program.walk import input_nodes
from fakexport.exporting.program.weightless import WeightlessProgram, example_inputs_of
from fakexport.rules.diagnostics import Diagnostic


class RetargetError(FakexportError, ValueError):
    """Nodes of a program fail on the new devices, so no program was created. The message is a single line.

    Args:
        diagnostics: FE502 and FE504. Identical failures in repeated modules are merged, with a count.
    """

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        count = sum(diagnostic.count for diagnostic in diagnostics)
        first = diagnostics[0]
        where = "" if first.primary is None else f" ({first.primary.span.path}:{first.primary.span.line})"
        nodes = "1 node fails" if count == 1 else f"{count} nodes fail"
        super().__init__(f"{nodes} on the new devices: {first.code} at {first.node}{where}: {first.notes[0]}")
        self.diagnostics = diagnostics


class RetargetWarning(UserWarning):
    """Some nodes of a moved program could not be run on fake tensors, so they are not verified."""


@dataclass(frozen=True)
class Retargeted:
    """A program that was moved to other devices.

    Args:
        program: The moved program.
        devices: Devices of the program's weights, constants and values, sorted.
        topology: The topology for which the program was verified, such as `H100-80GB`. None means the devices
            of this machine.
        notes: Sentences about nodes with a different kernel on the new devices.
        unproven: Sentences about nodes that cannot be run on fake tensors. Usually empty.
    """

    program: ExportedProgram
    devices: tuple[str, ...]
    topology: str | None
    notes: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()


@one_at_a_time
def retarget(
    program: ExportedProgram,
    devices: str | Mapping[str, str] | None = None,
    *,
    device_map: str | Mapping[str, str] | None = None,
    target: str | Topology | None = None,
) -> ExportedProgram:
    """Move a program to other devices. The result equals an export for those devices.

    Every device is replaced: devices of weights, constants, inputs and values, and devices in keyword and
    positional arguments, lists, strings (autocast regions, custom operators), assertions, and subgraphs of
    control flow. Moves between devices are kept. Then the graph is run on fake tensors of the new devices,
    with rules as strict as those of real hardware, and the metadata of its nodes is updated.

    Decisions that the model made during the export are kept. If the model's code checks its device, or
    attention uses a kernel with a different layout on the new device, a new export produces a different
    program. Export again in this case.

    Args:
        program: The program. It is not changed.
        devices: A mapping from old to new devices, such as `{"cpu": "cuda:0"}` or `"cpu=cuda:0"`, or one
            device for everything, such as `"cuda:0"`.
        device_map: Instead of `devices`, a mapping from module paths to devices: `{"model.layers.0":
            "cuda:1", "": "cpu"}`. Tensors are moved when they enter a module on a different device.
        target: The topology, that is, the devices that exist: `"H100"`. Default: the topology of the
            enclosing `emulate` block. If there is no such block: the devices of this machine, or, if it lacks
            one of the devices, the default model of each device type.
    Returns:
        A new program. Fake weights stay fake, and keep their known values. Real weights stay real if this
        machine has their new device; otherwise, they become fake tensors whose value
        `fakexport.constant_value` returns. The same applies to example inputs.
    Raises:
        RetargetError: nodes of the program fail on the new devices; no program is created.
        ValueError: the map does not match the program, or a device is unknown or not in the topology.
        TypeError: the arguments are not a single device map.
    Warns:
        RetargetWarning: some nodes cannot be run on fake tensors of any device, so they are not verified.
    Reports:
        FE502, FE504 in `RetargetError.diagnostics`.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> retarget(program, {"cpu": "cuda:0"}).state_dict["weight"].device
        device(type='cuda', index=0)
    """
    made = retargeted(program, _one_map(devices, device_map), topology=target)
    for text in made.unproven:
        warnings.warn(RetargetWarning(text), stacklevel=3)
    return made.program


def _one_map(
    devices: str | Mapping[str, str] | None, device_map: str | Mapping[str, str] | None
) -> str | Mapping[str, str]:
    """Return the one map that was passed. Its keys show whether it maps devices or module paths."""
    given = [each for each in (devices, device_map) if each is not None]
    if len(given) != 1:
        raise InvalidType("pass either devices (device to device) or device_map (module path to device)")
    return given[0]


def retargeted(
    program: ExportedProgram, device_map: str | Mapping[str, str], *, topology: str | Topology | None = None
) -> Retargeted:
    """Move a program as `retarget` does, and return it with notes."""
    move = parse_move(program, device_map)
    with torch_logs_silenced(), devices_for(program, move, topology):
        tensors = MovedTensors(fake_mode_of(program))
        held = held_tensors(program, move, tensors)
        known = emulated_topology()
        graph_module = copied_graph(program)
        rerun = rerun_on(program, graph_module, move, held)
        if found := failures(rerun):
            raise RetargetError(found)
        made = derived_program(
            program,
            graph_module=graph_module,
            state_dict={name: held[name] for name in program.state_dict},
            constants={name: held[name] for name in program.constants},
            example_inputs=_example_inputs(program, move, tensors),
        )
    devices = devices_of_program(made)
    types = {device.partition(":")[0] for device in (*devices, *devices_of_program(program))}
    if len(types) > 1 and (found := kernel_failures(program, made)):
        raise RetargetError(found)
    moved_to = None if known is None else known.canonical
    keep_facts(made, _facts(program, made, devices, moved_to))
    if isinstance(program, WeightlessProgram):  # The weights are still missing.
        made = WeightlessProgram.of(made)
    give_stand_in_inputs(made)
    return Retargeted(
        made, devices=devices, topology=moved_to, notes=layout_notes(rerun), unproven=unproven_text(rerun)
    )


def _facts(
    program: ExportedProgram, made: ExportedProgram, devices: Sequence[str], topology: str | None
) -> ProgramFacts:
    facts = facts_of(made)
    lost = (
        name
        for name, new in made.state_dict.items()
        if is_fake(new) and (name in facts.left_behind or not is_fake(program.state_dict[name]))
    )
    return replace(facts.elsewhere(devices, topology), left_behind=tuple(lost))


def held_tensors(program: ExportedProgram, move: Move, tensors: MovedTensors | None = None) -> dict[str, Any]:
    """Return the weights and constants of a program on their new devices, by name."""
    tensors = tensors or MovedTensors(fake_mode_of(program))
    owners = _owners(program)
    held: dict[str, Any] = {
        name: tensors.constant(value, move.of(value.device, owners.get(name, name)))
        if isinstance(value, torch.Tensor)
        else value
        for name, value in program.constants.items()
    }
    for name, tensor in program.state_dict.items():
        held[name] = tensors.weight(tensor, move.of(tensor.device, name))
    return held


def rerun_on(
    program: ExportedProgram, graph_module: GraphModule, move: Move, held: Mapping[str, Any]
) -> Rerun:
    """Move `graph_module`, a copy of the program's graph, in place. `held` contains the moved tensors."""
    inputs: dict[Node, Any] = {}
    placed: dict[str, str] = {}
    nodes: list[Node] = []
    first = _path_of_inputs(program)
    mode = fake_mode_of(program)
    for spec, node in input_nodes(program, graph_module.graph):
        tensor = held.get(spec.target) if spec.target is not None else None
        if spec.target is not None and isinstance(tensor, torch.Tensor):
            placed[spec.target] = str(tensor.device)
            nodes.append(node)
        inputs[node] = _placeholder(node.meta.get("val"), spec, tensor, move, first)
        if isinstance(tensor, torch.ScriptObject):
            inputs[node] = fake_object(tensor, mode) or inputs[node]
    boundaries = Boundaries(placed, nodes) if isinstance(move, ModuleMove) else None
    present = devices_of_program(program)
    rerun = Rerun(mode, move, lambda: _existing(present), boundaries)
    rerun.run(graph_module, inputs)
    return rerun


def devices_for(
    program: ExportedProgram, move: Move, topology: str | Topology | None
) -> AbstractContextManager[Any]:
    """Return a context in which fake tensors can use the devices of the moved program.

    Raises:
        ValueError: the topology lacks one of the new devices.
    """
    emulated = Topology.parse(topology) if isinstance(topology, str) else topology
    if (known := emulated or emulated_topology()) is not None:
        for device in move.new_devices:
            known.device(device)
    if emulated is not None:
        return emulate(emulated)
    needed = {*move.new_devices, *(str(move.of(device)) for device in devices_of_program(program))}
    return nullcontext() if emulated_topology() is not None else _existing(needed)


def _existing(devices: Iterable[str]) -> AbstractContextManager[Any]:
    """Return a context in which fake tensors can use these devices.

    Devices that do not exist on this machine are emulated with the default model of their type.
    """
    if all(exists_here(device) for device in devices):
        return nullcontext()
    counts: Counter[str] = Counter()
    for wanted in map(torch.device, sorted({*devices} - {"cpu", "meta"})):
        counts[wanted.type] = max(counts[wanted.type], (wanted.index or 0) + 1)
    return emulate("+".join(f"{count}x{kind}" if count > 1 else kind for kind, count in counts.items()))


def fake_mode_of(program: ExportedProgram) -> FakeTensorMode:
    """Return the mode of the program's fake tensors, or a new one if it has none."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    tensors = (leaf for value in values for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
    return mode_of(tensors) or new_fake_mode()


def _owners(program: ExportedProgram) -> dict[str, str]:
    """Map each lifted constant, which has no module path, to the path of the module that first reads it."""
    return {
        spec.target: next((module_path(user) for user in node.users), "")
        for spec, node in input_nodes(program)
        if spec.kind is InputKind.CONSTANT_TENSOR and spec.target is not None
    }


def _path_of_inputs(program: ExportedProgram) -> str:
    """Return the name of the first weight in a submodule. Inputs are placed on its device."""
    return next((name for name in program.state_dict if "." in name), "")


def _placeholder(before: Any, spec: InputSpec, tensor: Any, move: Move, first: str) -> Any:
    """Return the value of a placeholder on its new device.

    As in torch, the fake tensor of a literal on the CPU keeps a reference to its data.
    """
    if not isinstance(before, FakeTensor):
        return before
    device = tensor.device if isinstance(tensor, torch.Tensor) else move.of(before.device, first)
    made = fake_elsewhere(before, device)
    is_real = isinstance(tensor, torch.Tensor) and not isinstance(tensor, FakeTensor)
    if spec.kind is InputKind.CONSTANT_TENSOR and is_real and device.type == "cpu":
        made.constant = tensor
    return made.requires_grad_(before.requires_grad)


def _example_inputs(
    program: ExportedProgram, move: Move, tensors: MovedTensors
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    inputs = None if has_stand_in_inputs(program) else example_inputs_of(program)
    if inputs is None:
        return None
    first = _path_of_inputs(program)

    def moved(leaf: Any) -> Any:
        return tensors.weight(leaf, move.of(leaf.device, first)) if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = tree_map(moved, inputs)
    return args, kwargs
