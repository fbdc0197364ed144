"""Small models whose programs are right at some sizes only, and calls that they must refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

import fakexport as fe

__all__ = ["CASES", "WEIGHTS", "GuardedCase"]

WEIGHTS = {"linear.weight": torch.randn(4, 4, generator=torch.Generator().manual_seed(0))}
_AUTO = Dim.AUTO


class Guarded(nn.Module):
    """One weight, which its subclasses use in a way that depends on sizes or on plain values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False)


class Parity(Guarded):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.shape[1] % 2 == 0 else -self.linear(x)


class Divisible(Guarded):
    def forward(self, x: Tensor) -> Tensor:
        quarter = self.linear(x)[:, : x.shape[1] // 4]
        return quarter * 2 if x.shape[1] % 4 == 0 else quarter


class Equal(Guarded):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.linear(x).sum() + y.sum() if x.shape[1] == y.shape[1] else self.linear(x).sum() - y.sum()


class Shorter(Guarded):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.linear(x).sum() + y.sum() if x.shape[1] < y.shape[1] else self.linear(x).sum() - y.sum()


class Product(Guarded):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        is_flat = x.shape[0] * x.shape[1] == y.shape[0]
        return self.linear(x).sum() + y.sum() if is_flat else self.linear(x).sum() - y.sum()


class Sum(Guarded):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        both = self.linear(x).sum() + y.sum()
        return both if (x.shape[1] + y.shape[1]) % 3 == 0 else -both


class Root(Guarded):
    """As cohere2_vision and others ask for the side of a square."""

    def forward(self, x: Tensor) -> Tensor:
        side = x.shape[1] ** 0.5
        return self.linear(x) * 2 if side < 5 else self.linear(x)


class Nested(Guarded):
    def forward(self, parts: dict[str, Any]) -> Tensor:
        first = parts["pair"][0]
        return self.linear(first) if first.shape[1] % 2 == 0 else -self.linear(first)


class Scaled(Guarded):
    def forward(self, x: Tensor, times: int) -> Tensor:
        return self.linear(x) * times


class Chosen(Guarded):
    def forward(self, x: Tensor, mode: str = "plus", is_long: bool = True) -> Tensor:
        return self.linear(x) if mode == "plus" and is_long else -self.linear(x)


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


@dataclass(frozen=True, eq=False)
class GuardedCase:
    """A model, the call that it is exported with, and other calls.

    Args:
        model: Makes it.
        example: Of the export.
        dynamic: For torch.
        fitting: Shapes of calls that the program takes, as positional arguments.
        refused: The same, of calls that it must refuse: eager computes something else for them.
        words: What a refusal says of the condition, in torch's words and in fakexport's.
        kwargs: Of every call, and `other_kwargs` of those to be refused.
    """

    model: Callable[[], Guarded]
    example: tuple[Any, ...]
    dynamic: Any
    fitting: tuple[tuple[Any, ...], ...] = ()
    refused: tuple[tuple[Any, ...], ...] = ()
    words: tuple[str, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    other_kwargs: tuple[dict[str, Any], ...] = ()

    def export(self) -> torch.export.ExportedProgram:
        """The weight-less program."""
        return fe.export(self.model, self.example, dict(self.kwargs), dynamic_shapes=self.dynamic)

    def bound_model(self) -> Guarded:
        """The real module, for eager's answers."""
        model = self.model()
        model.load_state_dict(WEIGHTS)
        return model

    @property
    def is_of_tensors(self) -> bool:
        """Whether inputs by name can be given to `run`, which takes tensors alone."""
        return not self.kwargs and all(isinstance(value, Tensor) for value in self.example)


CASES = {
    "parity": GuardedCase(
        Parity, (_zeros(2, 16, 4),), ({1: _AUTO},),
        ((_zeros(2, 4, 4),), (_zeros(2, 18, 4),)), ((_zeros(2, 17, 4),), (_zeros(2, 3, 4),)),
        ("x", "% 2 == 0"),
    ),
    "divisible": GuardedCase(
        Divisible, (_zeros(2, 16, 4),), ({1: _AUTO},), ((_zeros(2, 8, 4),),), ((_zeros(2, 18, 4),),),
        ("x", "% 4 == 0"),
    ),
    "equal": GuardedCase(
        Equal, (_zeros(2, 16, 4), _zeros(2, 16, 4)), ({1: _AUTO}, {1: _AUTO}),
        ((_zeros(2, 9, 4), _zeros(2, 9, 4)),), ((_zeros(2, 9, 4), _zeros(2, 8, 4)),), ("x", "y"),
    ),
    "shorter": GuardedCase(
        Shorter, (_zeros(2, 16, 4), _zeros(2, 17, 4)), ({1: _AUTO}, {1: _AUTO}),
        ((_zeros(2, 5, 4), _zeros(2, 9, 4)),), ((_zeros(2, 9, 4), _zeros(2, 8, 4)),), ("x", "<", "y"),
    ),
    "product": GuardedCase(
        Product, (_zeros(3, 16, 4), _zeros(48, 4)), ({0: _AUTO, 1: _AUTO}, {0: _AUTO}),
        ((_zeros(5, 7, 4), _zeros(35, 4)),), ((_zeros(5, 7, 4), _zeros(36, 4)),), ("x", "*", "y"),
    ),
    "sum": GuardedCase(
        Sum, (_zeros(2, 16, 4), _zeros(2, 17, 4)), ({1: _AUTO}, {1: _AUTO}),
        ((_zeros(2, 4, 4), _zeros(2, 8, 4)),), ((_zeros(2, 4, 4), _zeros(2, 9, 4)),), ("x", "y", "% 3 == 0"),
    ),
    "root": GuardedCase(
        Root, (_zeros(2, 16, 4),), ({1: _AUTO},), ((_zeros(2, 24, 4),),), ((_zeros(2, 25, 4),),),
        ("x", "0.5", "< 5"),
    ),
    "nested": GuardedCase(
        Nested, ({"pair": [_zeros(2, 16, 4), _zeros(3, 4)]},), ({"pair": [{1: _AUTO}, None]},),
        (({"pair": [_zeros(2, 6, 4), _zeros(3, 4)]},),), (({"pair": [_zeros(2, 7, 4), _zeros(3, 4)]},),),
        ("pair", "% 2 == 0"),
    ),
    "scaled": GuardedCase(
        Scaled, (_zeros(2, 16, 4), 3), ({1: _AUTO}, None), ((_zeros(2, 5, 4), 3),), ((_zeros(2, 5, 4), 4),),
        ("times", "== 3"),
    ),
    "chosen": GuardedCase(
        Chosen, (_zeros(2, 16, 4),), {"x": {1: _AUTO}, "mode": None, "is_long": None},
        ((_zeros(2, 5, 4),),), (), ("==",), {"mode": "plus", "is_long": True},
        ({"mode": "minus", "is_long": True}, {"mode": "plus", "is_long": False}),
    ),
}  # fmt: skip
