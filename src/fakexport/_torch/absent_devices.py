"""A device that a target does not have: the error that a model gets for naming it, as on the real machine.

Fake mode creates a tensor on any requested device, whether a machine has it or not. C++ code that no
emulation answers, such as `torch.Generator(device="cuda")`, asks for the real device; what it says when there
is none depends on the build. Seen on torch 2.11 to 2.13, built for the CPU and for CUDA 13.0.
"""

from __future__ import annotations

import re

import torch

from fakexport.error import FakexportError

ALWAYS_THERE = ("cpu", "meta")
"""Device types that every machine has."""


class AbsentDevice(torch.AcceleratorError, AssertionError, FakexportError):
    """A model names a device that the topology does not have.

    A CUDA build raises an `AcceleratorError`, a CPU-only wheel an `AssertionError`: a model that catches
    either goes on as it would on that machine. It has no constructor of its own: TorchDynamo traces its
    callers, and could not call one.
    """

    device: torch.device
    """The device that does not exist. Set by `named`."""

    instead: torch.device
    """A device that exists, for those who go on. Set by `named`."""

    @classmethod
    def named(cls, device: torch.device | str, present: str, *, instead: str) -> AbsentDevice:
        """Return the error about an operator or a tensor on a device that does not exist.

        Args:
            present: The devices that exist, as text: `cpu, cuda:0..cuda:7`.
            instead: One of them.
        """
        error = cls(absence(str(device), present))
        error.device, error.instead = torch.device(device), torch.device(instead)
        return error


def absence(device: str, present: str) -> str:
    """Return the sentence by which such an error is recognized, also where another error quotes it."""
    return f"device {device} does not exist on this target: it has {present}"


# For CUDA: a build without it, twice a machine without a driver, twice one with a driver and no GPU.
_UNREACHED = {
    "cuda": re.compile(
        r"Cannot get CUDA generator without|CUDA driver version is insufficient|Found no NVIDIA driver"
        r"|no CUDA-capable device is detected|No CUDA GPUs are available"
    ),
    "xpu": re.compile(r"Cannot get XPU generator without"),
    "mps": re.compile(r"Cannot get MPS generator without|without MPS backend"),
}


def unreached_device_type(message: str) -> str | None:
    """Return the type of the real device that torch asked for and this machine lacks, as an error says."""
    return next((kind for kind, pattern in _UNREACHED.items() if pattern.search(message)), None)
