"""A device that a target does not have: the error that a model gets for naming it, as on the real machine.

Fake mode creates a tensor on any requested device, whether a machine has it or not. Seen on torch 2.11 to
2.13.
"""

from __future__ import annotations

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
