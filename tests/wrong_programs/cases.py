"""The models. What is wrong is the program of torch 2.13 and 2.15; a test fails when torch repairs one."""

from __future__ import annotations

import itertools
import random

import numpy as np
import torch
from torch import Tensor, nn

from .case import case

X = torch.linspace(-1, 1, 12).reshape(3, 4)
CALLS = 0


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


@case((X,), (X,), (X,), shown=Mean)
class StateOfAnInnerModule(nn.Module):
    """A buffer that a module inside of another one assigns."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Mean()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@case((X,), (X,))
class RegisteredInForward(nn.Module):
    """A buffer that `forward` registers: the program overwrites what the caller passes."""

    def forward(self, x: Tensor) -> Tensor:
        self.register_buffer("table", torch.full((4,), 3.0))
        return x * self.table


@case((X,))
class DataAssigned(nn.Module):
    """A value that is assigned to `.data`."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y.data = x * 3
        return y


@case((X,), (X,), (X,))
class AttributeCounts(nn.Module):
    """An attribute that counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x / self.steps


@case((X,), (X,), (X,))
class VariableCounts(nn.Module):
    """A variable of the file that counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        global CALLS
        CALLS = 0

    def forward(self, x: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        return x / CALLS


@case((X, torch.tensor(3)), (X, torch.tensor(1)))
class TextOfANumber(nn.Module):
    """A number of a tensor that is compared as text."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        if str(n.item()) == "3":
            return x * 2
        return x


@case((X,), (X[:2],), varies=True)
class TextOfASize(nn.Module):
    """A size that is looked up as text."""

    def forward(self, x: Tensor) -> Tensor:
        scales = {"3 rows": 2.0, "2 rows": 3.0}
        return x * scales.get(f"{x.shape[0]} rows", 1.0)


@case((X,))
class ExactClass(nn.Module):
    """A question for the exact class of a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        if type(x) is torch.Tensor:
            return x * 2
        return x


@case((X + 1,), (X - 1,))
class CaughtQuestion(nn.Module):
    """A condition on data inside of a `try` that catches what torch raises."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            return x * 2 if x.sum() > 0 else -x
        except Exception:
            return x


@case((X,), (torch.ones(8, 4),), varies=True)
class ModuloOfAFraction(nn.Module):
    """A size modulo a fraction, for which the program computes with whole numbers."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] % 2.5 == 0.5:
            return x * 2
        return x


@case((X,), (torch.ones(1, 4),), example=(X,), varies=True)
class SizeOfOne(nn.Module):
    """A condition that only the sizes 0 and 1 meet, which a trace takes to be impossible."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] < 2:
            return x * 2
        return x


@case((X, None), (X, X), example=(X, None))
class NoneOfTheExample(nn.Module):
    """An input that was None in the example, and is a tensor in a call."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            x = x * mask
        return x


@case((X,), (X,))
class SeedInForward(nn.Module):
    """A seed that `forward` sets."""

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return x + torch.rand(4)


@case((X,))
class DefaultDtypeInForward(nn.Module):
    """A default dtype that `forward` sets."""

    def forward(self, x: Tensor) -> Tensor:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        noise = torch.zeros(4)
        torch.set_default_dtype(before)
        return x + noise


@case((X,), (X,))
class DrawnInPython(nn.Module):
    """A number that Python draws."""

    def forward(self, x: Tensor) -> Tensor:
        return x * random.choice([2, 3, 5, 7, 11, 13])


@case((X,), (X - 2,))
class DerivativeOfTheInput(nn.Module):
    """A derivative with respect to the input."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: (y * y).sum())(x)


@case((X,), (X,), (X,))
class ClosureCounts(nn.Module):
    """A function that counts its calls in a variable of its own."""

    def __init__(self) -> None:
        super().__init__()
        counter = itertools.count(1)
        self.count = lambda: next(counter)

    def forward(self, x: Tensor) -> Tensor:
        return x / self.count()


@case((X,), (X[:2],), varies=True)
class ClassOfASize(nn.Module):
    """A question for the class of a size."""

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x.shape[0], int):
            return x * 2
        return x


@case((X,), (X[:2],), (torch.ones(5, 4),), varies=True)
class RoundedSize(nn.Module):
    """A size that is rounded to tens."""

    def forward(self, x: Tensor) -> Tensor:
        return x * round(x.shape[0] * 5, -1)


@case((X,), (X,), (X,))
class ExchangedTensor(nn.Module):
    """A plain tensor of a module that `forward` exchanges."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.steps = self.steps + 1
        return x * self.steps


@case((X,), (X,), (X,))
class WrittenArray(nn.Module):
    """An array of NumPy that a tensor writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.total = np.zeros(4, dtype="float32")

    def forward(self, x: Tensor) -> Tensor:
        torch.from_numpy(self.total).add_(1)
        return x * torch.from_numpy(self.total)
