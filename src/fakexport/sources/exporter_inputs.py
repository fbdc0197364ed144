"""What `transformers.exporters` computes of the values of inputs, outside of a program: inputs of it too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn


def computed_inputs(part: nn.Module, known: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors that `transformers.exporters` computes for an encoder.

    Args:
        part: The encoder. Its weights take no part in it.
        known: Real inputs of it, by name, which are not among the result.
    """
    from transformers.exporters.utils import precompute_export_inputs

    inputs: dict[str, Any] = dict(known)
    precompute_export_inputs(part, inputs)
    return {n: value for n, value in inputs.items() if isinstance(value, torch.Tensor) and n not in known}


def computed_note(names: Iterable[str], of: str) -> str:
    """Return a clause that tells of such inputs."""
    return (
        f"{', '.join(names)} are inputs of the program: "
        f"transformers.exporters.utils.precompute_export_inputs computes them from {of}"
    )
