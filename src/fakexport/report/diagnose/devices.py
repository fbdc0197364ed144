"""Detect a device that the target does not have: FE505."""

from __future__ import annotations

import re
from collections.abc import Callable

from fakexport._torch.emulation.absent_devices import unreached_device_type
from fakexport.emulation.devices import MAX_DEVICES, Topology, default_profiles
from fakexport.exporting.capture import CaptureFailure
from fakexport.report.diagnose.labels import labels_at, labels_of
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix, Label, Span

_ABSENT = re.compile(
    r"device (?P<device>[\w:]+) does not exist on this target: it has (?P<present>[\w:., ]+\w)"
)


def absent_device(failure: CaptureFailure, topology: Topology | None) -> Diagnostic | None:
    """Report FE505: `forward` uses a device that the topology lacks."""
    found = _absent(failure.messages, topology)
    return None if found is None else _diagnostic(*found, topology, lambda text: labels_of(failure, text))


def absent_device_in_constructor(
    error: BaseException, span: Span | None, topology: Topology | None
) -> Diagnostic | None:
    """Report FE505 for an error that a factory raised."""
    found = _absent((str(error),), topology)
    return None if found is None else _diagnostic(*found, topology, lambda text: labels_at(span, text))


def _absent(messages: tuple[str, ...], topology: Topology | None) -> tuple[str, str] | None:
    """Parse the missing device and the existing devices from error messages; None if no message matches."""
    for message in messages:
        if (found := _ABSENT.search(message)) is not None:
            return found["device"], found["present"]
        device_type = unreached_device_type(message)
        if device_type is not None and topology is not None and not topology.devices_of(device_type):
            return device_type, topology.present
    return None


def _diagnostic(
    device: str, present: str, topology: Topology | None, labels: Callable[[str], tuple[Label, ...]]
) -> Diagnostic:
    return rule("FE505").diagnostic(
        labels=labels(f"{device} does not exist on this target"),
        notes=(f"the target has {present}",),
        fix=Fix(f"use the device of an input or a weight (`x.device`){_other_target(device, topology)}"),
    )


def _other_target(device: str, topology: Topology | None) -> str:
    """Return the end of the fix, which names a target that has the device, or "" if no target has it."""
    device_type, _, index = device.partition(":")
    count = int(index or 0) + 1
    if device_type not in default_profiles() or count > MAX_DEVICES:
        return ""
    models = topology.devices_of(device_type) if topology else ()
    name = (models[-1].profile if models else default_profiles()[device_type]).name
    target = name if count == 1 else f"{count}x{name}"
    return f", or check a target with {device}: `--target {target}`"
