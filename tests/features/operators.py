"""Features of plain operators: FFT, linear algebra, indexing, in-place writes, views."""

from __future__ import annotations

import torch
from torch import Tensor

from .feature import Calling, Made, Weighted, feature, ramp


@feature
def fft() -> Made:
    return Weighted(lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 2, s=(2, 4))), (ramp(2, 4),)


@feature
def stft() -> Made:
    def transformed(x: Tensor) -> Tensor:
        window = torch.hann_window(8, device=x.device)
        spectrum = torch.stft(x, 8, window=window, return_complex=True)
        return torch.istft(spectrum, 8, window=window)

    return Calling(transformed), (ramp(2, 32),)


@feature
def linear_algebra() -> Made:
    def solved(x: Tensor) -> Tensor:
        square = x @ x.mT + 3 * torch.eye(x.size(0), device=x.device)
        factor = torch.linalg.cholesky(square)
        return torch.linalg.solve(square, x) + torch.linalg.inv(factor) @ x + torch.linalg.det(square)

    return Calling(solved), (ramp(3, 4),)


@feature
def decompositions() -> Made:
    def decomposed(x: Tensor) -> Tensor:
        return (
            torch.linalg.svdvals(x).sum() + torch.linalg.qr(x)[1].abs() + torch.linalg.eigvalsh(x.mT @ x)[-1]
        )

    return Calling(decomposed), (ramp(3, 3) + torch.eye(3),)


@feature
def matrix_exponential_and_power() -> Made:
    return Calling(lambda x: torch.linalg.matrix_exp(x) + torch.linalg.matrix_power(x, 3)), (ramp(3, 3),)


@feature
def einsum() -> Made:
    return Weighted(lambda x: torch.einsum("bi,ci->bc", x, x) + torch.tensordot(x, x, ([1], [1]))), (
        ramp(3, 4),
    )


@feature
def sort_and_topk() -> Made:
    return Weighted(lambda x: (x.sort(-1).values, x.topk(2).indices, x.argmax(-1), x.median(-1).values)), (
        ramp(2, 4),
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
def masked_fill_and_where() -> Made:
    return Weighted(lambda x: x.masked_fill(x > 0, 0.0) + torch.where(x > 0, x, 0.0)), (ramp(2, 4),)


@feature
def nonzero_and_mask() -> Made:
    return Weighted(lambda x: (x.nonzero(), x[x > 0])), (ramp(2, 4),)


@feature
def unique_and_counts() -> Made:
    return Calling(lambda x: torch.unique(x.long(), return_counts=True)), (ramp(2, 4) * 3,)


@feature
def cumulative() -> Made:
    return Weighted(lambda x: x.cumsum(0) + x.cumprod(1) + x.cummax(1).values + x.logcumsumexp(0)), (
        ramp(2, 4),
    )


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
def changed_input() -> Made:
    return Calling(lambda x: x.add_(1).relu()), (ramp(2, 4),)


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
def split_stack_roll() -> Made:
    def shuffled(x: Tensor) -> Tensor:
        return torch.stack([*x.split([1, 3], dim=1)][1:]).roll(1, 0).flip(-1).rot90(1, (1, 2)).repeat(2, 1, 1)

    return Weighted(shuffled), (ramp(2, 4),)


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


@feature
def named_outputs() -> Made:
    return Weighted(lambda x: {"last": x, "all": [x, (x * 2, x.sum())]}), (ramp(2, 4),)
