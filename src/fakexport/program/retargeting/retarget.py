"""A program for other devices than those that it was exported for."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import GraphModule, Node

from fakexport._torch.fake_tensors import FakeTensor, FakeTensorMode, fake_elsewhere, mode_of, new_fake_mode
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._torch.script_objects import fake_object
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.devices import Topology, emulate, emulated_topology, exists_here
from fakexport.diagnostics import Diagnostic
from fakexport.error import FakexportError, InvalidType
from fakexport.fake import is_fake
from fakexport.program.derived_program import derived_program
from fakexport.program.devices import devices_of_program
from fakexport.program.node_names import module_path
from fakexport.program.program_copy import copied_graph
from fakexport.program.program_facts import ProgramFacts, facts_of, keep_facts
from fakexport.program.retargeting.boundaries import Boundaries
from fakexport.program.retargeting.device_move import ModuleMove, Move, parse_move
from fakexport.program.retargeting.findings import failures, kernel_failures, layout_notes, unproven_text
from fakexport.program.retargeting.moved_tensors import MovedTensors
from fakexport.program.retargeting.rerun import Rerun
from fakexport.program.stand_in_inputs import give_stand_in_inputs, has_stand_in_inputs
from fakexport.program.weightless import WeightlessProgram, example_inputs_of


class RetargetError(FakexportError, ValueError):
    """Nodes of a program fail on the new devices: no program was made. The text is one line.

    Args:
        diagnostics: FE502 and FE504; nodes of repeated modules that fail alike are one, with a count.
    """

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        count = sum(diagnostic.count for diagnostic in diagnostics)
        first = diagnostics[0]
        where = "" if first.primary is None else f" ({first.primary.span.path}:{first.primary.span.line})"
        nodes = "1 node fails" if count == 1 else f"{count} nodes fail"
        super().__init__(f"{nodes} on the new devices: {first.code} at {first.node}{where}: {first.notes[0]}")
        self.diagnostics = diagnostics


class RetargetWarning(UserWarning):
    """A program is on other devices, and some of its nodes could not be run on fakes to prove it."""


@dataclass(frozen=True)
class Retargeted:
    """A program on other devices.

    Args:
        program: The program.
        devices: Devices of its weights, constants and values, sorted.
        topology: The devices for which it was proven, `H100-80GB`; None: those of this machine.
        notes: Sentences about nodes for which another kernel is chosen on the new devices.
        unproven: Sentences about nodes that cannot be run on fakes; empty as a rule.
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
    """Move a program to other devices: the result is what an export for those devices returns.

    Every device is replaced: of weights, constants, inputs and values, in arguments by keyword and position,
    inside lists, in text (autocast regions, custom operators), in assertions, in subgraphs of control flow.
    A move between devices stays one. Then the graph is run on fakes of the new devices, by rules as strict as
    those of real hardware, and the metadata of its nodes is the result.

    Decisions that the model made while it was exported are kept. If its code checks which device it is on, or
    attention uses a kernel with another layout there, an export for the new device returns a different
    program: export again to get that one.

    Args:
        program: Not changed.
        devices: `{"cpu": "cuda:0"}`, also as text, `"cpu=cuda:0"`; or one device for all, `"cuda:0"`.
        device_map: In place of `devices`, module path to device: `{"model.layers.0": "cuda:1", "": "cpu"}`.
            Tensors are moved where they enter a module on another device.
        target: The topology, the devices that exist, `"H100"`. Default: those of the `emulate` block
            around the call, else those of this machine, else the default model of each kind that is named.
    Returns:
        A new program. Fake weights stay fake, and known values stay known. Real ones stay real where this
        machine has their new device; else they become fakes, whose value `fakexport.fake.value_of` returns.
        Example inputs likewise.
    Raises:
        RetargetError: nodes of the program fail on the new devices; no program is created.
        ValueError: a map that does not fit the program, or a device that is unknown or not in the topology.
        TypeError: not a device map.
    Warns:
        RetargetWarning: nodes that cannot be run on fake tensors of any device, so they are not verified.
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
    """Return the one that is given. Its keys tell which of the two it is."""
    given = [each for each in (devices, device_map) if each is not None]
    if len(given) != 1:
        raise InvalidType("give either devices, device to device, or device_map, module path to device")
    return given[0]


def retargeted(
    program: ExportedProgram, device_map: str | Mapping[str, str], *, topology: str | Topology | None = None
) -> Retargeted:
    """As `retarget`, with what is to be told about the program."""
    move = parse_move(program, device_map)
    with torch_logs_silenced(), devices_for(program, move, topology):
        tensors = MovedTensors(_mode(program))
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
    if isinstance(program, WeightlessProgram):  # It refuses to run, and so does this one.
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
    tensors = tensors or MovedTensors(_mode(program))
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
    """Put a copy of the program's graph on other devices, in place."""
    inputs: dict[Node, Any] = {}
    placed: dict[str, str] = {}
    nodes: list[Node] = []
    first = _path_of_inputs(program)
    mode = _mode(program)
    for spec, node in _inputs(program, graph_module):
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
    """Return a context in which the devices of the moved program exist for fakes.

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
    """Return a context in which devices exist for fakes.

    One that is not here is the usual model of its kind.
    """
    if all(exists_here(device) for device in devices):
        return nullcontext()
    counts: Counter[str] = Counter()
    for wanted in map(torch.device, sorted({*devices} - {"cpu", "meta"})):
        counts[wanted.type] = max(counts[wanted.type], (wanted.index or 0) + 1)
    return emulate("+".join(f"{count}x{kind}" if count > 1 else kind for kind, count in counts.items()))


def _mode(program: ExportedProgram) -> FakeTensorMode:
    values = (node.meta.get("val") for node in program.graph.nodes)
    tensors = (leaf for value in values for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
    return mode_of(tensors) or new_fake_mode()


def _inputs(program: ExportedProgram, graph_module: GraphModule) -> Iterator[tuple[InputSpec, Node]]:
    nodes = {node.name: node for node in graph_module.graph.find_nodes(op="placeholder")}
    return ((spec, nodes[spec.arg.name]) for spec in program.graph_signature.input_specs)


def _owners(program: ExportedProgram) -> dict[str, str]:
    """Return the path of the module that first reads each constant without a path of its own."""
    return {
        spec.target: next((module_path(user) for user in node.users), "")
        for spec, node in _inputs(program, program.graph_module)
        if spec.kind is InputKind.CONSTANT_TENSOR and spec.target is not None
    }


def _path_of_inputs(program: ExportedProgram) -> str:
    """Return the first weight that a submodule holds: inputs are expected on its device, as for an export."""
    return next((name for name in program.state_dict if "." in name), "")


def _placeholder(before: Any, spec: InputSpec, tensor: Any, move: Move, first: str) -> Any:
    """Return the value of a placeholder on its new device.

    A literal on the CPU knows its data, as in torch.
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
