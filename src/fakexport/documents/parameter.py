"""The parameters of a model's `forward`, as an archive records them; free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Scalar: TypeAlias = "bool | int | float | str | None"
ParameterKind = Literal["positional", "any", "keyword", "args", "kwargs"]
PARAMETER_KINDS: tuple[str, ...] = get_args(ParameterKind)


@dataclass(frozen=True)
class Parameter:
    """One parameter of `forward`.

    Args:
        name: Its name.
        kind: How it is passed: by position alone, by position or name, by name alone; `args`: it takes the
            rest of the positional arguments; `kwargs`: of the named ones.
        defaults: Its default, if it has one that is a number, a text or None; else empty.
    """

    name: str
    kind: ParameterKind
    defaults: tuple[Scalar, ...] = ()
