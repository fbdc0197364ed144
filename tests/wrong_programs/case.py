"""What a case is: a model that torch.export exports wrong, the calls that show it, and a fix."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn

__all__ = ["CASES", "FIXES", "Case", "case", "fix"]


@dataclass(frozen=True)
class Case:
    """A model, and the calls of it in order.

    Args:
        kind: The class of the model.
        example: The inputs of the export.
        calls: The inputs of each call.
        varies: Whether the first dimension of each input is dynamic.
        shown: The class whose `forward` is on the page, if it is not `kind`.
        issue: The number of the PyTorch issue that reports the fault.
        draws: Whether a fix draws different random numbers than the model.
    """

    kind: type[nn.Module]
    example: tuple[Tensor | None, ...]
    calls: tuple[tuple[Tensor | None, ...], ...]
    varies: bool = False
    shown: type[nn.Module] | None = None
    issue: int | None = None
    draws: bool = False

    @property
    def title(self) -> str:
        """The first line of the class's docstring."""
        return inspect.cleandoc(self.kind.__doc__ or "").splitlines()[0].removesuffix(".")

    @property
    def anchor(self) -> str:
        """The anchor that GitHub and Sphinx give the heading `title`."""
        return re.sub(r"[^\w -]", "", self.title.lower()).replace(" ", "-")

    @property
    def explanation(self) -> str:
        """The rest of the docstring: why the program is wrong, and the fix."""
        return inspect.cleandoc(self.kind.__doc__ or "").partition("\n\n")[2]

    @property
    def code(self) -> str:
        """The `forward`, and the constructor if the class has one."""
        shown = vars(self.shown or self.kind)
        methods = [inspect.getsource(shown[name]) for name in ("__init__", "forward") if name in shown]
        return textwrap.dedent("\n\n".join(methods)).rstrip()


CASES: dict[str, Case] = {}
FIXES: dict[str, Case] = {}
"""Name of a case -> the same case with the fixed model."""


def case(
    *calls: tuple[Tensor | None, ...],
    example: tuple[Tensor | None, ...] | None = None,
    varies: bool = False,
    shown: type[nn.Module] | None = None,
    issue: int | None = None,
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a class: it is exported with `example`, or the inputs of the first call."""

    def register(kind: type[nn.Module]) -> type[nn.Module]:
        CASES[kind.__name__] = Case(kind, example or calls[0], calls, varies, shown, issue)
        return kind

    return register


def fix(
    name: str,
    *calls: tuple[Tensor | None, ...],
    shown: type[nn.Module] | None = None,
    draws: bool = False,
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a class as the fixed model of a case, with calls of its own if the fix changes the inputs."""

    def register(kind: type[nn.Module]) -> type[nn.Module]:
        broken = CASES[name]
        calls_, example = (calls, calls[0]) if calls else (broken.calls, broken.example)
        FIXES[name] = replace(broken, kind=kind, example=example, calls=calls_, shown=shown, draws=draws)
        return kind

    return register
