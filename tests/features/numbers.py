"""Features of random numbers, dtypes and layouts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .feature import Calling, Made, Weighted, feature, ramp, register, register_weighted

register(
    dropout_eval=lambda: (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval(), (ramp(2, 4),)),
    dropout_train=lambda: (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train(), (ramp(2, 4),)),
    float64_literal=lambda: (
        Calling(lambda x: x.double() * torch.tensor([0.1, 0.2], dtype=torch.float64, device=x.device).sum()),
        (ramp(2, 4),),
    ),
    sparse_csr_product=lambda: (Calling(lambda x: x.to_sparse_csr() @ x.mT), (ramp(2, 4),)),
)
register_weighted(
    random_in_place=lambda x: x * torch.empty_like(x).normal_() + x.clone().uniform_(-1, 1),
    permutation=lambda x: x[:, torch.randperm(4, device=x.device)],
    float8_cast=lambda x: x.to(torch.float8_e4m3fn).to(x.dtype),
    fake_quantized=lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
)


@feature
def generator_of_the_device() -> Made:
    def drawn(x: Tensor) -> Tensor:
        generator = torch.Generator(x.device)
        generator.manual_seed(7)
        return x + torch.rand(x.shape, generator=generator, device=x.device)

    return Weighted(drawn), (ramp(2, 4),)


@feature
def multinomial_and_bernoulli() -> Made:
    def drawn(x: Tensor) -> tuple[Tensor, Tensor]:
        p = x.softmax(-1)
        return torch.multinomial(p, 2), torch.bernoulli(p)

    return Weighted(drawn), (ramp(2, 4),)


@feature
def complex_numbers() -> Made:
    def rotated(x: Tensor) -> Tensor:
        turns = torch.polar(torch.ones(2, device=x.device), torch.arange(2.0, device=x.device))
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (2, 2))) * turns).flatten(-2)

    return Weighted(rotated), (ramp(2, 4),)


@feature
def complex_parameter() -> Made:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.complex(ramp(4), ramp(4).flip(0)))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.weight).abs()

    return Complex(), (ramp(2, 4),)


@feature
def integer_matrix_product() -> Made:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.arange(-128, 128, 2, dtype=torch.int8).view(16, 8))

        def forward(self, x: Tensor) -> Tensor:
            return torch._int_mm(x.mul(10).to(torch.int8), self.weight)

    return Product(), (ramp(32, 16),)


@feature
def channels_last() -> Made:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval().to(memory_format=torch.channels_last)
    return module, (ramp(2, 3, 8, 8).to(memory_format=torch.channels_last),)


@feature
def sparse_coo_product() -> Made:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", ramp(4, 3), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.sparse.mm(x.to_sparse(), self.weight)

    return Product(), (ramp(2, 4),)


@feature
def sparse_coo_made() -> Made:
    def made(x: Tensor) -> Tensor:
        places = torch.tensor([[0, 1], [1, 0]], device=x.device)
        return torch.sparse_coo_tensor(places, x[0, :2], (2, 2)).to_dense()

    return Calling(made), (ramp(2, 4),)


@feature
def expanded_buffer() -> Made:
    class Expanded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bias", ramp(4).expand(2, 4), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.bias

    return Expanded(), (ramp(2, 4),)


@feature
def jagged_nested() -> Made:
    def nested(x: Tensor) -> Tensor:
        offsets = torch.tensor([0, 1, x.size(0)], device=x.device)
        return torch.nested.nested_tensor_from_jagged(x, offsets).values() * 2

    return Calling(nested), (ramp(3, 4),)
