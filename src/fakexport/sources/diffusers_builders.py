"""What the inputs of single classes of diffusers are made of: tensors whose sizes the config names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fakexport.sources.diffusers_sizes import SAMPLES, latent_shape
from fakexport.sources.input_request import InputRequest

Builder = Callable[[InputRequest], Any]
TEXT = "the number of text tokens"
LENGTH = SAMPLES


def floats(*dims: int | str) -> Builder:
    """Return a builder of a tensor: a batch of these sizes, each a number or a name of the config."""
    return lambda request: request.floats(request.batch, *(size(request, dim) for dim in dims))


def ids(*dims: int | str, value: int = 0) -> Builder:
    """Return a builder of an int64 tensor of one value, with sizes as `floats` takes them."""
    return lambda request: request.ids(request.batch, *(size(request, dim) for dim in dims), value=value)


def present(*dims: int | str) -> Builder:
    """Return a builder of a mask of bools that hides nothing, with sizes as `floats` takes them."""
    return lambda request: ids(*dims, value=1)(request).bool()


def list_of(*dims: int | str) -> Builder:
    """Return a builder of a list of tensors, one for each item of the batch."""
    return lambda request: [
        request.floats(*(size(request, dim) for dim in dims)) for _ in range(request.batch)
    ]


def size(request: InputRequest, dim: int | str) -> int:
    """Return a size: the number itself, that of the text, or what the config names."""
    if isinstance(dim, int):
        return dim
    return request.sequence if dim == TEXT else int(request.setting(dim))


def steps(request: InputRequest) -> torch.Tensor:
    """Return a time step for each item of the batch, in float32."""
    return torch.zeros(request.batch, device=request.device)


def steps_in_dtype(request: InputRequest) -> torch.Tensor:
    """Return a time step for each item of the batch in the dtype of the latents, as pipelines cast it."""
    return request.floats(request.batch)


def like_latents(request: InputRequest) -> torch.Tensor:
    """Return a tensor of the shape of the latents."""
    return request.floats(*latent_shape(request))


def never(request: InputRequest) -> None:
    """Leave out an input that the pipelines of a class never pass, whose weights they do not use either."""


def positions(request: InputRequest, count: int) -> torch.Tensor:
    """Return 0, 1, ... in int64."""
    return torch.arange(count, device=request.device)
