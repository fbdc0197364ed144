"""What has another name now: the old one works, with a warning, until 1.0."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from fakexport.error import InvalidType

__all__ = ["old_name_text", "renamed", "warn_of_old_name"]

P = ParamSpec("P")
R = TypeVar("R")


def old_name_text(old: str, new: str) -> str:
    """Return the sentence about a use of an old name."""
    return f"{old} is called {new} now; the old name works until fakexport 1.0"


def warn_of_old_name(old: str, new: str, *, stacklevel: int = 1) -> None:
    """Warn about a use of an old name.

    Args:
        old: What was used.
        new: What it is called now.
        stacklevel: Whose line the warning names, as in `warnings.warn`: 1 is the caller's.
    """
    warnings.warn(old_name_text(old, new), DeprecationWarning, stacklevel=stacklevel + 1)


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
    warn_of_old_name(f"{function}(): {old}=", f"{new}=", stacklevel=3)
    kwargs[new] = kwargs.pop(old)
