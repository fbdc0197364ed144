"""Search data for NaN and infinity, piece by piece."""

from __future__ import annotations

import torch

_PIECE = 1 << 24


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether every element is finite; integers are. One pass over the data, with little memory."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    flat = tensor.detach().reshape(-1)
    if flat.itemsize == 1:  # float8 has no kernel for it
        return all(bool(piece.to(torch.float32).isfinite().all()) for piece in flat.split(_PIECE))
    return all(bool(piece.isfinite().all()) for piece in flat.split(_PIECE))


def are_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors have the same shape, dtype and bits."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.data_ptr() == second.data_ptr() and first.stride() == second.stride():
        return True
    if 0 in first.stride() and first.stride() == second.stride():
        # What one number is expanded to is compared once.
        once = [0 if stride == 0 else slice(None) for stride in first.stride()]
        first, second = first[tuple(once)], second[tuple(once)]
    pairs = zip(_pieces(first), _pieces(second), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).split(_PIECE) if flat.numel() else ()
