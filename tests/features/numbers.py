"""Features of random numbers, dtypes and layouts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .feature import Calling, Made, Weighted, feature, ramp


@feature
def dropout_eval() -> Made:
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval(), (ramp(2, 4),)


@feature
def dropout_train() -> Made:
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train(), (ramp(2, 4),)


@feature
def other_dropouts() -> Made:
    return nn.Sequential(nn.AlphaDropout(0.3), nn.Dropout1d(0.3)).train(), (ramp(2, 4, 8),)


@feature
def random_like() -> Made:
    return Weighted(lambda x: x + torch.rand_like(x) + torch.randn_like(x)), (ramp(2, 4),)


@feature
def random_in_place() -> Made:
    return Weighted(lambda x: x * torch.empty_like(x).normal_() + x.clone().uniform_(-1, 1)), (ramp(2, 4),)


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
def permutation() -> Made:
    return Weighted(lambda x: x[:, torch.randperm(4, device=x.device)]), (ramp(2, 4),)


@feature
def gumbel_and_rrelu() -> Made:
    return Weighted(lambda x: F.gumbel_softmax(x, hard=True) + F.rrelu(x, training=True)), (ramp(2, 4),)


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
def float8_cast() -> Made:
    return Weighted(lambda x: x.to(torch.float8_e4m3fn).to(x.dtype)), (ramp(2, 4),)


@feature
def half_and_bfloat16() -> Made:
    return Weighted(lambda x: x.half().float() + x.bfloat16().float()), (ramp(2, 4),)


@feature
def boolean_logic() -> Made:
    return Weighted(lambda x: torch.where((x > 0) & ~(x > 1), x, x.logical_not())), (ramp(2, 4),)


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
def small_unsigned() -> Made:
    return Calling(lambda x: x.to(torch.uint16).to(torch.int32) + x.to(torch.uint8)), (
        ramp(2, 4).abs() * 100,
    )


@feature
def fake_quantized() -> Made:
    return Weighted(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)), (ramp(2, 4),)


@feature
def float64_literal() -> Made:
    return Calling(
        lambda x: x.double() * torch.tensor([0.1, 0.2], dtype=torch.float64, device=x.device).sum()
    ), (ramp(2, 4),)


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
def sparse_csr_product() -> Made:
    return Calling(lambda x: x.to_sparse_csr() @ x.mT), (ramp(2, 4),)


@feature
def strided_views() -> Made:
    return Weighted(lambda x: x.as_strided((2, 2), (4, 1)) + x.t()[1:3].t() + x.expand(3, 2, 4)[2, :, :2]), (
        ramp(2, 4),
    )


@feature
def transposed_input() -> Made:
    return Weighted(lambda x: x.contiguous().view(-1)), (ramp(4, 2).t(),)


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
