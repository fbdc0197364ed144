"""What has another name now: the old one works, with a warning, until 1.0."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from fakexport.error import InvalidType

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept the old names of keyword arguments, each with a `DeprecationWarning` at the caller's line.

    Args:
        names: Each new name by the old one.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def accepting(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in names.keys() & kwargs.keys():
                _rename(kwargs, old, names[old], function.__name__)
            return function(*args, **kwargs)

        return accepting

    return decorated


def _rename(kwargs: dict[str, Any], old: str, new: str, function: str) -> None:
    if new in kwargs:
        raise InvalidType(f"{function}() got both {new}= and {old}=, its old name")
    text = f"{function}(): {old}= is called {new}= now; the old name works until fakexport 1.0"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    kwargs[new] = kwargs.pop(old)
