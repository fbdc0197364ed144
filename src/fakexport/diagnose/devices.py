"""Detect a device that the target does not have: FE505."""

from __future__ import annotations

import re
from collections.abc import Callable

from fakexport._torch.absent_devices import unreached_device_type
from fakexport.capture import CaptureFailure
from fakexport.devices import MAX_DEVICES, Topology, default_profiles
from fakexport.diagnose.labels import labels_at, labels_of
from fakexport.diagnostics import Diagnostic, Fix, Label, Span
from fakexport.rules import rule

_ABSENT = re.compile(
    r"device (?P<device>[\w:]+) does not exist on this target: it has (?P<present>[\w:., ]+\w)"
)


def absent_device(failure: CaptureFailure, topology: Topology | None) -> Diagnostic | None:
    """Report FE505: `forward` names a device that the topology lacks."""
    found = _absent(failure.messages, topology)
    return None if found is None else _diagnostic(*found, topology, lambda text: labels_of(failure, text))


def absent_device_in_constructor(
    error: BaseException, span: Span | None, topology: Topology | None
) -> Diagnostic | None:
    """Return the same for what a factory raised."""
    found = _absent((str(error),), topology)
    return None if found is None else _diagnostic(*found, topology, lambda text: labels_at(span, text))


def _absent(messages: tuple[str, ...], topology: Topology | None) -> tuple[str, str] | None:
    """Return the device that does not exist and those that do, as an error says."""
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
    """Return a target that has the device, as text after the first half of a fix; "" where there is none."""
    device_type, _, index = device.partition(":")
    count = int(index or 0) + 1
    if device_type not in default_profiles() or count > MAX_DEVICES:
        return ""
    models = topology.devices_of(device_type) if topology else ()
    name = (models[-1].profile if models else default_profiles()[device_type]).name
    target = name if count == 1 else f"{count}x{name}"
    return f", or check a target that has {device}: `--target {target}`"
