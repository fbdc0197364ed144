"""Features of plain operators: indexing, in-place writes, views, questions about devices."""

from __future__ import annotations

import torch
from torch import Tensor

from .feature import Calling, Made, Weighted, feature, ramp, register, register_weighted

register(
    unique_and_counts=lambda: (
        Calling(lambda x: torch.unique(x.long(), return_counts=True)),
        (ramp(2, 4) * 3,),
    ),
    changed_input=lambda: (Calling(lambda x: x.add_(1).relu()), (ramp(2, 4),)),
)
register_weighted(
    nonzero_and_mask=lambda x: (x.nonzero(), x[x > 0]),
    named_outputs=lambda x: {"last": x, "all": [x, (x * 2, x.sum())]},
)


@feature
def scatter_and_gather() -> Made:
    def moved(x: Tensor) -> Tensor:
        index = x.argsort(-1)
        return (
            x.gather(1, index)
            + torch.zeros_like(x).scatter_add(1, index, x)
            + x.index_select(0, index[:, 0] % 2)
        )

    return Weighted(moved), (ramp(2, 4),)


@feature
def index_put() -> Made:
    def put(x: Tensor) -> Tensor:
        y = x.clone()
        y[0, 1:3] = 5
        y[torch.tensor([1], device=x.device), torch.tensor([0], device=x.device)] = x[0, 0]
        return y

    return Weighted(put), (ramp(2, 4),)


@feature
def counting() -> Made:
    def counted(x: Tensor) -> tuple[Tensor, ...]:
        edges = torch.tensor([-0.5, 0.0, 0.5], device=x.device)
        return torch.bucketize(x, edges), torch.histc(x, 4, -1, 1), torch.searchsorted(edges, x)

    return Calling(counted), (ramp(2, 4),)


@feature
def in_place() -> Made:
    def changed(x: Tensor) -> Tensor:
        y = x.clone()
        y[:, :2].mul_(2)
        y.t_().add_(1).clamp_(min=0)
        return y.unsqueeze_(0)

    return Weighted(changed), (ramp(2, 4),)


@feature
def views() -> Made:
    def viewed(x: Tensor) -> tuple[Tensor, ...]:
        first, second = x.chunk(2, dim=1)
        return (
            x.unfold(1, 2, 1),
            first.movedim(0, 1),
            second.reshape(-1),
            x.view(torch.int32),
            x[..., None, ::2],
        )

    return Weighted(viewed), (ramp(2, 4),)


@feature
def literals() -> Made:
    def shifted(x: Tensor) -> Tensor:
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
        return x * scale + torch.full((), 0.5, device=x.device) + torch.arange(4, device=x.device)

    return Weighted(shifted), (ramp(2, 4),)


@feature
def device_questions() -> Made:
    def asked(x: Tensor) -> Tensor:
        return x.to(x.device).type_as(x) + torch.zeros(4, device=x.device, dtype=x.dtype)

    return Weighted(asked), (ramp(2, 4),)


@feature
def device_context() -> Made:
    def inside(x: Tensor) -> Tensor:
        with torch.device(x.device):
            return x + torch.ones(4)

    return Weighted(inside), (ramp(2, 4),)
