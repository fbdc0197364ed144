"""The last look at the devices of a program: none that the target does not have."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.absent_devices import ALWAYS_THERE, AbsentDevice
from fakexport.capture.failure import CaptureFailure
from fakexport.devices import Topology, emulated_topology
from fakexport.diagnostics import Span
from fakexport.program import (
    device_of_literal,
    devices,
    graph_modules,
    named_devices,
    source_span,
    tensors_in,
    walk,
)


def drop_refused_nodes(program: ExportedProgram) -> None:
    """Remove the operators that raised because of an absent device, in a model that caught the error.

    torch writes a node before it runs the operator, and leaves it there. The program would raise where the
    model goes on.
    """
    topology = emulated_topology()
    if topology is None:
        return
    for module in graph_modules(program.graph_module):
        refused = [node for node in module.graph.nodes if _is_refused(node, topology)]
        for node in reversed(refused):
            module.graph.erase_node(node)
        if refused:
            module.recompile()


def failure_of_absent_device(program: ExportedProgram) -> CaptureFailure | None:
    """Return the failure of a program that uses a device that the topology lacks; None otherwise.

    Operators that name one raise while they are traced. This finds what came from elsewhere: inputs and
    weights that were made before, and devices that a library put into the graph by itself.
    """
    topology = emulated_topology()
    if topology is None or not any(_is_absent(device, topology) for device in _every_device(program)):
        return None
    for device, span in _devices(program):
        if _is_absent(device, topology):
            error = AbsentDevice.named(device, topology.present, instead=topology.default_device)
            return CaptureFailure.of(error, spans=() if span is None else (span,))
    return None


def _is_absent(device: str, topology: Topology) -> bool:
    return torch.device(device).type not in ALWAYS_THERE and not topology.has_device(device)


def _is_refused(node: Node, topology: Topology) -> bool:
    if node.op != "call_function" or node.users or node.meta.get("val") is not None:
        return False
    named = (device_of_literal(value) for value in (*node.args, *node.kwargs.values()))
    return any(device is not None and _is_absent(device, topology) for device in named)


def _every_device(program: ExportedProgram) -> set[str]:
    """Return the devices of `_devices`, and those of autocast regions, without a look at stack traces."""
    of_values: set[torch.device] = set()
    named: set[str] = set()
    for module in graph_modules(program.graph_module):
        for node in module.graph.nodes:
            of_values.update(tensor.device for tensor in tensors_in(node.meta.get("val")))
            named.update(named_devices(node))
    return named | set(map(str, of_values))


def _devices(program: ExportedProgram) -> Iterator[tuple[str, Span | None]]:
    """Yield each device with the user's line that it is used in, values before literals.

    An autocast region moves nothing: torch ignores it where its device type does not exist.
    """
    for visit in walk(program):
        for tensor in tensors_in(visit.node.meta.get("val")):
            yield str(tensor.device), visit.span or _reading_span(visit.node)
    for literal in devices(program):
        if literal.kind != "autocast":
            yield literal.device, literal.span


def _reading_span(node: Node) -> Span | None:
    return next((span for user in node.users if (span := source_span(user))), None)
