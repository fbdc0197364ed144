"""Move the weights, constants and inputs of a program to their new devices."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import FakeTensor, FakeTensorMode, fake_elsewhere, real_to_fake
from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.tracing.program_assembly import as_parameter
from fakexport.emulation.devices import exists_here
from fakexport.emulation.history import hand_on_value, is_filled, known_value, set_constant_value
from fakexport.exporting.program.tensor_identity import tensor_identity


class MovedTensors:
    """Moves tensors to new devices. Tied names still share one tensor.

    Fake tensors stay fake, and keep their known values. A real tensor stays real if its new device exists on
    this machine. Otherwise, it becomes a fake tensor that references the real one.

    Args:
        mode: The fake mode of the program.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._moved: dict[tuple[Hashable, str, bool], torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []

    def weight(self, old: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a parameter or buffer on its new device, or the same tensor if it is already there."""
        return self._once(old, device, self._weight)

    def constant(self, old: Any, device: torch.device) -> Any:
        """Return a constant on its new device. On the CPU, it is a real tensor if its value is known."""
        return self._once(old, device, self._constant) if isinstance(old, torch.Tensor) else old

    def _once(self, old: torch.Tensor, device: torch.device, make: Any) -> torch.Tensor:
        if old.device == device:
            return old
        key = tensor_identity(old), str(device), isinstance(old, nn.Parameter)
        if key not in self._moved:
            self._kept.append(old)  # Kept alive, so that no id is reused.
            self._moved[key] = make(old, device)
        return self._moved[key]

    def _weight(self, old: torch.Tensor, device: torch.device) -> torch.Tensor:
        if isinstance(old, FakeTensor):
            made: torch.Tensor = fake_elsewhere(old, device).requires_grad_(old.requires_grad)
            hand_on_value(old, made)
        elif exists_here(device):
            with real_execution():
                made = old.detach().to(device)
            return nn.Parameter(made, old.requires_grad) if isinstance(old, nn.Parameter) else made
        else:
            made = self._remembering(old.detach(), device).requires_grad_(old.requires_grad)
        return as_parameter(made) if isinstance(old, nn.Parameter) else made

    def _constant(self, old: torch.Tensor, device: torch.device) -> torch.Tensor:
        value = known_value(old)
        if value is None or (isinstance(old, FakeTensor) and is_filled(old)):
            made = fake_elsewhere(old, device)  # type: ignore[arg-type]
            hand_on_value(old, made)
            return made
        if exists_here(device):
            with real_execution():
                return value.to(device)
        return self._remembering(value, device)

    def _remembering(self, real: torch.Tensor, device: torch.device) -> torch.Tensor:
        made = real_to_fake(self._mode, real, device)
        with real_execution():
            set_constant_value(made, real.cpu())
        return made
