"""Fakes of the model's own mode in a trace, where stock torch would meet real tensors.

Export traces in a fake mode of its own. What it knows of (parameters, buffers, inputs) it makes into fakes
of that mode; a tensor that a plain attribute or a plain Python object holds, it meets as it is. An operator
that returns such a tensor itself (`copy_`, a `.to` that has nothing to do) then leaves a fake of the other
mode as the value of its node, and export refuses the program. For a real tensor, stock takes a new fake of
the trace's mode; so it does here for a fake of another mode. Seen on torch 2.11 to 2.13.

Source: `torch/fx/experimental/proxy_tensor.py:extract_val`, `torch/_guards.py:detect_fake_mode`.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor

from .active_modes import active_fake_mode
from .patching import Patches

_stock_snapshot = proxy_tensor.snapshot_fake


def foreign_fakes_join_the_trace() -> Patches:
    """Return a context in which every node of a trace gets a value of the trace's own fake mode."""
    return Patches({(proxy_tensor, "snapshot_fake"): _snapshot})


def _snapshot(value: torch.Tensor, include_real: bool = False) -> torch.Tensor | None:
    mode = active_fake_mode()
    if mode is None or not isinstance(value, FakeTensor) or value.fake_mode is mode:
        return _stock_snapshot(value, include_real)
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
