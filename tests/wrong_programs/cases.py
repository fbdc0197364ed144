"""The models, and a fix of each. A test fails if a release of torch exports one of the models correctly."""

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
    """A submodule assigns a buffer.

    The exported program does not update the buffer of a submodule. Update the buffer in place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inner = Mean()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@case((X,), (X,))
class RegisteredInForward(nn.Module):
    """`forward` registers a buffer.

    The exported program writes the buffer's value into the tensor that the caller passes. Register the
    buffer in the constructor.
    """

    def forward(self, x: Tensor) -> Tensor:
        self.register_buffer("table", torch.full((4,), 3.0))
        return x * self.table


@case((X,))
class DataAssigned(nn.Module):
    """A value assigned to `.data`.

    `.data = ...` is not an operator, so the exported program skips it. Assign to the variable.
    """

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y.data = x * 3
        return y


@case((X,), (X,), (X,))
class AttributeCounts(nn.Module):
    """An attribute that counts calls.

    The counter is a constant of the exported program: every call is call 1. Use a buffer, and add to it
    in place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x / self.steps


class StartsFromZero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        global CALLS
        CALLS = 0


@case((X,), (X,), (X,))
class VariableCounts(StartsFromZero):
    """A global variable that counts calls.

    The variable is read once, during the trace. Use a buffer, and add to it in place.
    """

    def forward(self, x: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        return x / CALLS


@case((X, torch.tensor(3)), (X, torch.tensor(1)))
class TextOfANumber(nn.Module):
    """A number compared as text.

    During the trace `n.item()` has no value, and its text is a symbol such as `u0`. The comparison is
    false for every input. Compare the tensor.
    """

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        if str(n.item()) == "3":
            return x * 2
        return x


@case((X,), (X[:2],), varies=True)
class TextOfASize(nn.Module):
    """A dictionary lookup with a size as text.

    During the trace the size is a symbol, and its text is `s77` or similar. No key matches, so every
    input gets the default. Put the size into a tensor and compare that.
    """

    def forward(self, x: Tensor) -> Tensor:
        scales = {"3 rows": 2.0, "2 rows": 3.0}
        return x * scales.get(f"{x.shape[0]} rows", 1.0)


@case((X,))
class ExactClass(nn.Module):
    """A test for the exact class of a tensor.

    During the trace `x` is a `FakeTensor`, a subclass of `torch.Tensor`. Use `isinstance`.
    """

    def forward(self, x: Tensor) -> Tensor:
        if type(x) is torch.Tensor:
            return x * 2
        return x


@case((X + 1,), (X - 1,))
class CaughtQuestion(nn.Module):
    """A data-dependent condition in a `try` block.

    torch raises an error at the condition, and the `except` catches it. The exported program contains
    only the `except` branch. Use `torch.where`.
    """

    def forward(self, x: Tensor) -> Tensor:
        try:
            return x * 2 if x.sum() > 0 else -x
        except Exception:
            return x


@case((X,), (torch.ones(8, 4),), varies=True)
class ModuloOfAFraction(nn.Module):
    """A size modulo a float.

    torch computes `size % 2.5` in integer arithmetic if the size is symbolic. Compute with a tensor.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] % 2.5 == 0.5:
            return x * 2
        return x


@case((X,), (torch.ones(1, 4),), example=(X,), varies=True)
class SizeOfOne(nn.Module):
    """A condition that only sizes 0 and 1 satisfy.

    `torch.export` assumes that a dynamic dimension is at least 2, so the condition is always false.
    Compute the condition with a tensor.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] < 2:
            return x * 2
        return x


@case((X, None), (X, X), example=(X, None))
class NoneOfTheExample(nn.Module):
    """An optional input that is None in the example.

    The exported program ignores a mask that is passed later. Export with a mask, and pass a mask of
    ones if nothing is masked.
    """

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            x = x * mask
        return x


@case((X,), (X,))
class SeedInForward(nn.Module):
    """`forward` sets a seed.

    The seed is set during the trace only. Draw the number in the constructor, and keep it in a buffer.
    """

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return x + torch.rand(4)


@case((X,))
class DefaultDtypeInForward(nn.Module):
    """`forward` sets the default dtype.

    The default dtype is set during the trace only. Pass `dtype=` to the call that creates the tensor.
    """

    def forward(self, x: Tensor) -> Tensor:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        noise = torch.zeros(4)
        torch.set_default_dtype(before)
        return x + noise


@case((X,), (X,))
class DrawnInPython(nn.Module):
    """A random number from Python.

    The number that was drawn during the trace is a constant of the exported program. Draw with torch.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x * random.choice([2, 3, 5, 7, 11, 13])


@case((X,), (X - 2,))
class DerivativeOfTheInput(nn.Module):
    """A derivative from `torch.func`.

    The input becomes a constant of the exported program. Use `torch.autograd.grad`.
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: (y * y).sum())(x)


@case((X,), (X,), (X,))
class ClosureCounts(nn.Module):
    """A closure that counts calls.

    The closure runs once, during the trace. Use a buffer, and add to it in place.
    """

    def __init__(self) -> None:
        super().__init__()
        counter = itertools.count(1)
        self.count = lambda: next(counter)

    def forward(self, x: Tensor) -> Tensor:
        return x / self.count()


@case((X,), (X[:2],), varies=True)
class ClassOfASize(nn.Module):
    """A test for the class of a size.

    During the trace a dynamic size is a `torch.SymInt`, not an `int`. Test for both.
    """

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x.shape[0], int):
            return x * 2
        return x


@case((X,), (X[:2],), (torch.ones(5, 4),), varies=True, issue=138852)
class RoundedSize(nn.Module):
    """A size rounded to tens.

    `round(size, -1)` of a symbolic size returns the size itself. Use integer arithmetic. The fix below
    rounds half to even, as Python does.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x * round(x.shape[0] * 5, -1)


@case((X,), (X,), (X,))
class ExchangedTensor(nn.Module):
    """A plain tensor attribute that `forward` replaces.

    The attribute is a constant of the exported program, and the assignment is lost. Use a buffer, and add
    to it in place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.steps = self.steps + 1
        return x * self.steps


@case((X,), (X,), (X,))
class WrittenArray(nn.Module):
    """A NumPy array that a tensor writes to.

    The array is not part of the exported program. Use a buffer, and add to it in place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = np.zeros(4, dtype="float32")

    def forward(self, x: Tensor) -> Tensor:
        torch.from_numpy(self.total).add_(1)
        return x * torch.from_numpy(self.total)
