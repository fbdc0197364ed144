"""Reversible replacement of attributes of torch modules and classes."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

__all__ = ["Patches"]

_ABSENT = object()


class Patches:
    """Context manager that sets attributes on entry and restores the very same objects on exit.

    An attribute that did not exist is removed again. Nested uses restore in reverse order, also when the
    block raises.

    Args:
        replacements: `(owner, attribute name) -> replacement`.
    """

    def __init__(self, replacements: Mapping[tuple[Any, str], Any]) -> None:
        self._replacements = dict(replacements)
        self._originals: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        for (owner, name), replacement in self._replacements.items():
            # `vars` and not `getattr`: a property or an inherited attribute must come back as it was.
            self._originals.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, replacement)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
