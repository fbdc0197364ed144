"""Raise errors about devices that the target does not have, as torch does on the real machine.

Fake mode creates a tensor on any requested device, even one that this machine lacks. C++ code that is not
emulated, such as `torch.Generator(device="cuda")`, needs the real device. If that device is missing, torch's
error message depends on the build. Seen on torch 2.11 to 2.13, built for the CPU and for CUDA 13.0.
"""

from __future__ import annotations

import re

import torch

from fakexport.error import FakexportError

ALWAYS_THERE = ("cpu", "meta")
"""Device types that every machine has."""


class AbsentDevice(torch.AcceleratorError, AssertionError, FakexportError):
    """A model uses a device that is not part of the topology.

    A CUDA build raises `AcceleratorError`, and a CPU-only build raises `AssertionError`. This class is
    both, so a model that catches one of the two behaves as it does with that build. It must not define a
    constructor, because TorchDynamo traces code that raises this error and cannot call the constructor.
    """

    device: torch.device
    """The device that does not exist. Set by `named`."""

    instead: torch.device
    """An existing device that can be used instead. Set by `named`."""

    @classmethod
    def named(cls, device: torch.device | str, present: str, *, instead: str) -> AbsentDevice:
        """Return the error for an operator or tensor on a device that does not exist."""
        error = cls(absence(str(device), present))
        error.device, error.instead = torch.device(device), torch.device(instead)
        return error


def absence(device: str, present: str) -> str:
    """Return the message of an `AbsentDevice`. FE505 is reported for errors that contain this message."""
    return f"device {device} does not exist on this target: it has {present}"


# CUDA messages: one for a build without CUDA, two for no driver, two for a driver without a GPU.
_UNREACHED = {
    "cuda": re.compile(
        r"Cannot get CUDA generator without|CUDA driver version is insufficient|Found no NVIDIA driver"
        r"|no CUDA-capable device is detected|No CUDA GPUs are available"
    ),
    "xpu": re.compile(r"Cannot get XPU generator without"),
    "mps": re.compile(r"Cannot get MPS generator without|without MPS backend"),
}


def unreached_device_type(message: str) -> str | None:
    """Return the device type that an error message of torch reports as unavailable, or None."""
    return next((kind for kind, pattern in _UNREACHED.items() if pattern.search(message)), None)
