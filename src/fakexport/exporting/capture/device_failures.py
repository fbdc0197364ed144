"""Check a captured program for devices that the target lacks, and for tensors on different devices."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.export import ExportedProgram

from fakexport._torch.emulation.absent_devices import ALWAYS_THERE, AbsentDevice
from fakexport.emulation.devices import emulated_topology
from fakexport.exporting.capture.failure import CaptureFailure
from fakexport.exporting.program import device_clashes, devices, reading_span, tensors_in, walk
from fakexport.rules.diagnostics import Span


def failure_of_devices(program: ExportedProgram) -> CaptureFailure | None:
    """Return a failure if the topology would reject the devices of a traced program, or None.

    Most operators with wrong devices raise an error during the trace. This function finds other uses of a
    device that the topology lacks: inputs and weights that were created before the trace, and devices that a
    library adds to the graph. It also finds tensors on different devices that fake mode accepts, but real
    hardware rejects, such as the weight of a convolution on the CPU.
    """
    if (topology := emulated_topology()) is None:
        return None
    for device, span in _devices(program):
        if torch.device(device).type not in ALWAYS_THERE and not topology.has_device(device):
            error = AbsentDevice.named(device, topology.present, instead=topology.default_device)
            return _failure(error, span)
    for visit, clash in device_clashes(program):
        values = [source.meta.get("val") for source in visit.node.all_input_nodes]
        one, other, *_ = dict.fromkeys(str(tensor.device) for tensor in tensors_in(values))
        mixed = f"found at least two devices, {one} and {other}! {clash}"
        return _failure(RuntimeError(mixed), visit.span)
    return None


def _failure(error: Exception, span: Span | None) -> CaptureFailure:
    return CaptureFailure.of(error, spans=() if span is None else (span,))


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
