"""How a fake tensor prints: `tensor(..., device='cuda:0', size=(10,), fake=True)`.

Seen on torch 2.11 to 2.13. The stock text is `FakeTensor(..., device='cuda:0', size=(10,))`.
"""

from __future__ import annotations

import torch


def describe_fake(fake: torch.Tensor) -> str:
    """Return the text of one fake tensor, with the non-default properties that torch shows of a tensor."""
    parts = ["..."]
    if fake.device.type != "cpu":
        parts.append(f"device='{fake.device}'")
    parts.append(f"size={tuple(fake.shape)}")
    if fake.dtype != torch.get_default_dtype():
        parts.append(f"dtype={fake.dtype}")
    if fake.layout is not torch.strided:
        parts.append(f"layout={fake.layout}")
    if fake.grad_fn is not None:
        parts.append(f"grad_fn=<{type(fake.grad_fn).__name__}>")
    elif fake.requires_grad:
        parts.append("requires_grad=True")
    text = f"tensor({', '.join([*parts, 'fake=True'])})"
    return f"Parameter containing:\n{text}" if isinstance(fake, torch.nn.Parameter) else text
