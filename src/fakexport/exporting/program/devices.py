"""Find the devices of a program, and the device literals in its graph."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.operators.operator_schema import argument_names
from fakexport._torch.pytree import tree_leaves
from fakexport.exporting.program.node_names import is_factory, module_path, operator_name
from fakexport.exporting.program.output_names import user_inputs
from fakexport.exporting.program.program_copy import graph_modules
from fakexport.exporting.program.source_span import source_span
from fakexport.exporting.program.walk import Visit, walk
from fakexport.rules.diagnostics import Span

_DEVICE_NAME = re.compile(r"(cpu|cuda|xpu|mps|hpu|xla|mtia|npu|hip|vulkan|meta)(:\d+)?")
_NAMING = (torch.device, str, list, tuple, dict)  # Types of node arguments that may name a device.

LiteralKind = Literal["creation", "move", "assertion", "autocast", "constant", "argument"]


@dataclass(frozen=True)
class DeviceLiteral:
    """A device literal in a node, or the device of a constant.

    Args:
        node: Name of the graph node. For a constant, the name of its placeholder.
        operator: Name of the operator, such as `aten.arange.default`. For a constant, `placeholder`.
        argument: Name of the argument (`device`, `device_type`), with an index for an item of a list
            (`devices[1]`), or its position (`2`) if the operator does not name arguments. For a constant, the
            constant's name.
        device: The device as written: `cuda:0`, or `cuda` without an index.
        span: The user's line, if the node has one. For a constant, the first line that reads it.
        module_path: Path of the module that the node came from.
        graph: Name of the subgraph that contains the node, or "" for the main graph.
        index: Position of the node in the order of execution, starting at 0.
        kind: `creation` (the node creates a tensor on the device), `move` (moves a tensor to it from another
            device), `assertion` (checks that a tensor is on it), `autocast` (a region for this device type),
            `constant`, or `argument` (anything else: a custom operator, a move without effect).
        is_baked_in: Whether the literal is there only because the export ran on this device: it is the device
            of a weight or an input, and not the target of a move. Other literals are in the model's code.
    """

    node: str
    operator: str
    argument: str
    device: str
    span: Span | None
    module_path: str
    graph: str
    index: int
    kind: LiteralKind
    is_baked_in: bool


def devices(program: ExportedProgram) -> tuple[DeviceLiteral, ...]:
    """Return the device literals of all nodes and the devices of constants, in execution order.

    Literals are `torch.device` values and strings with a device name (in autocast regions and custom
    operators). They can be keyword or positional arguments, or items of lists.

    Args:
        program: The program. It is not changed.
    """
    homes = _homes(program)
    constants = {
        spec.arg.name: spec.target
        for spec in program.graph_signature.input_specs
        if spec.target in program.constants
    }
    return tuple(literal for visit in walk(program) for literal in _literals(visit, homes, constants))


def named_devices(node: Node) -> Iterator[str]:
    """Yield the devices in the arguments of a node. The function `devices` also returns where they are."""
    for value in (*node.args, *node.kwargs.values()):
        if isinstance(value, _NAMING):
            for _, device in _devices_in(value):
                yield device


def device_of_literal(value: Any) -> str | None:
    """Return the device that an argument names, or None if it is not a device."""
    if isinstance(value, torch.device):
        return str(value)
    return value if isinstance(value, str) and _DEVICE_NAME.fullmatch(value) else None


def _homes(program: ExportedProgram) -> frozenset[str]:
    """Return the devices of weights and inputs. A baked-in literal is one of these devices."""
    held = [*program.state_dict.values(), *(node.meta.get("val") for _, node in user_inputs(program))]
    devices = {tensor.device for tensor in held if isinstance(tensor, torch.Tensor)}
    return frozenset({str(device) for device in devices} | {device.type for device in devices})


def _literals(
    visit: Visit, homes: frozenset[str], constants: Mapping[str, str | None]
) -> Iterator[DeviceLiteral]:
    node = visit.node
    if node.op == "placeholder" and visit.caller is None and node.name in constants:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            reader = next((user for user in node.users if source_span(user)), None)
            yield _literal(visit, str(constants[node.name]), str(value.device), "constant", homes, reader)
    elif node.op == "call_function":
        kind = _kind(node)
        for argument, value in _arguments(node):
            for place, device in _devices_in(value):
                yield _literal(visit, f"{argument}{place}", device, kind, homes)


def _literal(
    visit: Visit,
    argument: str,
    device: str,
    kind: LiteralKind,
    homes: frozenset[str],
    reader: Node | None = None,
) -> DeviceLiteral:
    return DeviceLiteral(
        node=visit.node.name,
        operator=operator_name(visit.node),
        argument=argument,
        device=device,
        span=visit.span if reader is None else source_span(reader),
        module_path=visit.module_path if reader is None else module_path(reader),
        graph=visit.graph,
        index=visit.index,
        kind=kind,
        is_baked_in=kind != "move" and device in homes,
    )


def _kind(node: Node) -> LiteralKind:
    name = operator_name(node)
    if name == "aten._assert_tensor_metadata.default":
        return "assertion"
    if "autocast" in name:
        return "autocast"
    value = node.meta.get("val")
    inputs = [source.meta.get("val") for source in node.all_input_nodes]
    before = {tensor.device for tensor in inputs if isinstance(tensor, torch.Tensor)}
    if not isinstance(value, torch.Tensor):
        return "argument"
    if not before or is_factory(name):
        return "creation"
    return "argument" if value.device in before else "move"


def _arguments(node: Node) -> Iterator[tuple[str, Any]]:
    names = argument_names(node.target)
    for position, value in enumerate(node.args):
        yield names[position] if position < len(names) else str(position), value
    yield from node.kwargs.items()


def _devices_in(value: Any) -> Iterator[tuple[str, str]]:
    device = device_of_literal(value)
    if device is not None:
        yield "", device
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            if isinstance(item, _NAMING):
                yield from ((f"[{index}]{place}", found) for place, found in _devices_in(item))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from ((f"[{key!r}]{place}", found) for place, found in _devices_in(item))


def devices_of_program(program: ExportedProgram) -> tuple[str, ...]:
    """Return the devices of all weights, constants and node values, sorted."""
    values = [
        node.meta.get("val") for module in graph_modules(program.graph_module) for node in module.graph.nodes
    ]
    held = [*program.state_dict.values(), *program.constants.values()]
    tensors = (leaf for leaf in tree_leaves([held, values]) if isinstance(leaf, torch.Tensor))
    return tuple(sorted({str(tensor.device) for tensor in tensors}))
