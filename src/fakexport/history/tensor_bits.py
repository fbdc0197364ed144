"""The bits of a tensor, by which values are compared: `-0.0` is not `0.0`, and NaN is itself."""

from __future__ import annotations

import torch


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of each element of a strided tensor, in one more dimension."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.unsqueeze(-1).view(torch.uint8)
