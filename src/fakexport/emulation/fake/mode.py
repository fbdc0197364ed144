"""Fake mode, and functions that inspect fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from fakexport._torch.emulation.fake_tensors import (
    FakeTensorMode,
    active_fake_mode,
    is_fake_tensor,
    meta_of,
    new_fake_mode,
)
from fakexport._torch.tracing.dispatch_observer import observe
from fakexport.emulation.devices import Topology, emulate
from fakexport.emulation.history import note_edit, recording
from fakexport.error import InvalidValue

from .checkpoint_reads import headers_alone
from .pretrained_models import pretrained_models


@contextmanager
def fake_mode(topology: str | Topology | None = None, *, fake_cuda: bool = False) -> Iterator[FakeTensorMode]:
    """Enter a context in which every created tensor is fake.

    A fake tensor has a shape, dtype, strides and device, but no data. Within the block it prints as
    `tensor(..., device='cuda:0', size=(10,), fake=True)`; after the block it prints in torch's own format.
    Values that the block reads (`.item()`, `.tolist()`, `.numpy()`, `bool(t)`) are computed on the CPU from
    the recorded operators. Call `.to(...)`, `.half()` and `.cuda()` of a fake module within the block; after
    it, they are not reliable. Writing into a tensor after the block makes its value unknown. A nested block
    uses the mode of the outer block. If the block loads safetensors files, directly or with transformers'
    `from_pretrained`, only the headers of the files are read.

    Args:
        topology: Virtual devices that exist in the block: `"H100"`, `"8xH100"`, `"cpu+2xA100-40GB"`. Default:
            the devices that exist outside the block.
        fake_cuda: Emulate `8xH100` if no topology is given. torchdistx has the same option.
    Returns:
        On entry, torch's `FakeTensorMode`.
    Raises:
        ValueError: the topology contains an unknown device.
        DataReadError: code in the block reads a value that cannot be computed from the recorded operators.
    Source: torchdistx `fake_mode`; pytorch issues 93947, 96161.

    Example:
        >>> import torch
        >>> with fake_mode(topology="H100"):
        ...     torch.ones(10, device="cuda")
        tensor(..., device='cuda:0', size=(10,), fake=True)
    """
    if fake_cuda and topology is None:
        topology = "8xH100"
    mode = active_fake_mode()
    if mode is None:
        mode = new_fake_mode()
        observe(mode, note_edit)
    with (
        emulate(topology) if topology is not None else nullcontext(),
        mode,
        recording(mode),
        headers_alone(),
        pretrained_models(),
    ):
        yield mode


def is_fake(tensor: object) -> bool:
    """Return whether `tensor` is a fake tensor of any fake mode.

    Args:
        tensor: Any object.

    Example:
        >>> import torch
        >>> is_fake(torch.ones(3))
        False
    """
    return is_fake_tensor(tensor)


def meta_like(fake: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor with the shape, strides, storage offset and dtype of a fake tensor.

    Args:
        fake: The fake tensor.
    Returns:
        A new tensor on device `meta`, detached from autograd and without `requires_grad`. It shares nothing
        with `fake`.
    Raises:
        ValueError: `fake` is not a fake tensor.
    Source: torchdistx `meta_like`.

    Example:
        >>> import torch
        >>> with fake_mode():
        ...     a = torch.ones(2, 3).t()
        >>> meta_like(a).stride()
        (1, 3)
    """
    if not is_fake_tensor(fake):
        raise InvalidValue(f"expected a fake tensor, got {type(fake).__name__}")
    return meta_of(fake)
