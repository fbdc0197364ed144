"""The models of `cases` after the fix that the page names: torch.export makes a correct program of each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .case import fix
from .cases import X


class UpdatesMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x - self.mean


@fix("StateOfAnInnerModule", shown=UpdatesMean)
class UpdatesInnerMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = UpdatesMean()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@fix("RegisteredInForward")
class RegistersTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.full((4,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.table


@fix("DataAssigned")
class AssignsVariable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 3
        return y


@fix("ClosureCounts")
@fix("VariableCounts")
@fix("AttributeCounts")
class CountsInBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x / self.steps


@fix("TextOfANumber")
class ComparesTensor(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        return torch.where(n == 3, x * 2, x)


@fix("TextOfASize")
class ComparesRows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.full((), x.shape[0])
        return x * torch.where(rows == 3, 2.0, torch.where(rows == 2, 3.0, 1.0))


@fix("ExactClass")
class AcceptsSubclasses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, torch.Tensor):
            return x * 2
        return x


@fix("CaughtQuestion")
class ChoosesSign(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.sum() > 0, x * 2, -x)


@fix("ModuloOfAFraction")
class TakesModuloOfTensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.full((), x.shape[0], dtype=torch.float32)
        return torch.where(rows % 2.5 == 0.5, x * 2, x)


@fix("SizeOfOne")
class ComparesSizeInTensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.full((), x.shape[0])
        return torch.where(rows < 2, x * 2, x)


@fix("NoneOfTheExample", (X, torch.ones(3, 4)), (X, X))
class AlwaysTakesMask(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask


@fix("SeedInForward")
class KeepsNoise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        noise = torch.rand(4, generator=torch.Generator().manual_seed(0))
        self.register_buffer("noise", noise)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.noise


@fix("DefaultDtypeInForward")
class NamesDtype(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.zeros(4, dtype=torch.float64)


@fix("DrawnInPython", draws=True)
class DrawsWithTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("primes", torch.tensor([2, 3, 5, 7, 11, 13]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.primes[torch.randint(6, (1,))]


@fix("DerivativeOfTheInput")
class TakesGradient(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (found,) = torch.autograd.grad((x * x).sum(), x)
        return found


@fix("ClassOfASize")
class AcceptsSymbolicSize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x.shape[0], (int, torch.SymInt)):
            return x * 2
        return x


@fix("RoundedSize")
class RoundsInIntegers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[0] * 5
        return x * ((size + 4 + size // 10 % 2) // 10 * 10)


@fix("ExchangedTensor")
class AddsToBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x * self.steps


@fix("WrittenArray")
class TotalInBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.total += 1
        return x * self.total
