"""Check a captured program for devices that the target does not have."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.export import ExportedProgram

from fakexport._torch.emulation.absent_devices import ALWAYS_THERE, AbsentDevice
from fakexport.emulation.devices import emulated_topology
from fakexport.exporting.capture.failure import CaptureFailure
from fakexport.exporting.program import devices, reading_span, tensors_in, walk
from fakexport.rules.diagnostics import Span


def failure_of_absent_device(program: ExportedProgram) -> CaptureFailure | None:
    """Return a failure if the program uses a device that the topology lacks, or None.

    Operators on such a device raise an error during the trace. This function finds other uses: inputs and
    weights that were created before the trace, and devices that a library adds to the graph.
    """
    if (topology := emulated_topology()) is None:
        return None
    for device, span in _devices(program):
        if torch.device(device).type not in ALWAYS_THERE and not topology.has_device(device):
            error = AbsentDevice.named(device, topology.present, instead=topology.default_device)
            return CaptureFailure.of(error, spans=() if span is None else (span,))
    return None


def _devices(program: ExportedProgram) -> Iterator[tuple[str, Span | None]]:
    """Yield the devices of tensors and device literals, each with a line of user code that uses the device.

    Tensors on the same device are reported only once. Autocast regions are not included: torch ignores them
    if their device type does not exist.
    """
    seen: set[torch.device] = set()
    for visit in walk(program):
        for tensor in tensors_in(visit.node.meta.get("val")):
            if tensor.device not in seen:
                seen.add(tensor.device)
                yield str(tensor.device), visit.span or reading_span(visit.node)
    for literal in devices(program):
        if literal.kind != "autocast":
            yield literal.device, literal.span
