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
from fakexport.program import devices, graph_modules, named_devices, source_span, tensors_in, walk


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
