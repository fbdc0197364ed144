"""What a case is: a model whose program is wrong, and the calls that show it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

__all__ = ["CASES", "Case", "case"]


@dataclass(frozen=True)
class Case:
    """A model, and calls that follow each other.

    Args:
        kind: The class of the model.
        example: The inputs that it is exported with.
        calls: What it is called with then, in this order.
        varies: Whether the first dimension of each input varies.
        shown: The class whose `forward` shows what it is about.
    """

    kind: type[nn.Module]
    example: tuple[Tensor | None, ...]
    calls: tuple[tuple[Tensor | None, ...], ...]
    varies: bool = False
    shown: type[nn.Module] | None = None

    @property
    def title(self) -> str:
        """The first line of the class's docstring."""
        return inspect.cleandoc(self.kind.__doc__ or "").splitlines()[0].removesuffix(".")

    @property
    def code(self) -> str:
        """The lines of `forward` after its first."""
        lines = inspect.getsource((self.shown or self.kind).forward).splitlines()[1:]
        return inspect.cleandoc("\n".join(["", *lines]))


CASES: dict[str, Case] = {}


def case(
    *calls: tuple[Tensor | None, ...],
    example: tuple[Tensor | None, ...] | None = None,
    varies: bool = False,
    shown: type[nn.Module] | None = None,
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a class: it is exported with `example`, or the inputs of the first call."""

    def register(kind: type[nn.Module]) -> type[nn.Module]:
        CASES[kind.__name__] = Case(kind, example or calls[0], calls, varies, shown)
        return kind

    return register
