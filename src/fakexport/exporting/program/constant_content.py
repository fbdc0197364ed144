"""Digests of constants."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.tracing.script_objects import class_name, pickled_object
from fakexport.emulation.fake import is_fake
from fakexport.emulation.history import bits, known_value
from fakexport.exporting.program.marked_text import plain_repr

UNKNOWN = "unknown"
_SHORT = 16
_PIECE_BYTES = 1 << 24


def content_of(constant: object) -> str:
    """Return a digest that is equal for two constants if and only if all their bits are equal.

    The digest is `unknown` for a tensor without data if its history does not determine the value.
    """
    if isinstance(constant, torch.ScriptObject):
        try:
            return f"{class_name(constant)} {digest(pickled_object(constant))}"
        except ValueError:
            return class_name(constant)
    if not isinstance(constant, torch.Tensor):
        return f"{type(constant).__qualname__} {plain_repr(constant)}"
    value = _value(constant)
    if value is None:
        return UNKNOWN
    with real_execution(), torch.no_grad():
        return _digest_of_tensor(value)


def data_of(value: Any) -> torch.Tensor | None:
    """Return the data of a constant, or None if it is unknown.

    The data of a fake constant is computed from its history. None is also returned for unsupported tensors:
    subclasses other than fake tensors, layouts other than strided, and tensors on the meta device.
    """
    known = _value(value)
    return known if known is not None and _is_plain(known) else None


def digest(content: bytes) -> str:
    """Return a short digest of bytes."""
    return hashlib.sha256(content).hexdigest()[:_SHORT]


def _value(constant: Any) -> torch.Tensor | None:
    if is_fake(constant):
        constant = known_value(constant)
    return constant if isinstance(constant, torch.Tensor) and not constant.is_meta else None


def _is_plain(tensor: torch.Tensor) -> bool:
    is_usual = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
    return is_usual and not tensor.is_quantized


def _digest_of_tensor(value: torch.Tensor) -> str:
    found = hashlib.sha256(f"{value.dtype}{list(value.shape)}{value.layout}".encode())
    if _is_plain(value):
        for piece in _pieces(value):
            found.update(bits(piece).numpy().tobytes())
    else:  # Sparse, quantized, or a subclass: torch knows the components.
        with io.BytesIO() as file:
            torch.save(value.detach().clone(), file)
            found.update(file.getvalue())
    return found.hexdigest()[:_SHORT]


def _pieces(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a tensor in pieces of limited size, because a copy of an expanded tensor may be very large."""
    if value.numel() * value.itemsize <= _PIECE_BYTES:
        yield value
    else:
        for part in value:
            yield from _pieces(part)
