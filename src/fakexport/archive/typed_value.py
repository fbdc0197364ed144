"""A JSON value with its path: what it must be is asked for, and what it is not is named with the path."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

__all__ = ["TypedValue", "ValueFault"]

T = TypeVar("T")


class ValueFault(ValueError):
    """A value is not what the schema asks for. `where` is its path: `tensors[3].shape`."""

    def __init__(self, where: str, what: str) -> None:
        self.where = where
        self.what = what
        super().__init__(f"{where}: {what}" if where else what)


class TypedValue:
    """A value of plain Python types and the path that leads to it."""

    __slots__ = ("path", "value")

    def __init__(self, value: Any, path: str = "") -> None:
        self.value = value
        self.path = path

    def fault(self, what: str) -> ValueFault:
        """An error about this value."""
        return ValueFault(self.path, what)

    def fields(self, keys: Collection[str]) -> dict[str, TypedValue]:
        """The values of an object that has exactly these keys."""
        if not isinstance(self.value, dict):
            raise self.fault(f"is {_kind(self.value)}, not an object")
        if missing := sorted(keys - self.value.keys()):
            raise self.fault(f"the key `{missing[0]}` is missing")
        if extra := sorted(self.value.keys() - set(keys)):
            raise self.fault(f"the key {extra[0][:80]!r} is unknown")
        prefix = f"{self.path}." if self.path else ""
        return {key: TypedValue(self.value[key], prefix + key) for key in keys}

    def pairs(self, most: int) -> Iterator[tuple[str, TypedValue]]:
        """The keys and values of an object with any keys."""
        if not isinstance(self.value, dict):
            raise self.fault(f"is {_kind(self.value)}, not an object")
        if len(self.value) > most:
            raise self.fault(f"has {len(self.value)} entries; the limit is {most}")
        for key, value in self.value.items():
            yield key, TypedValue(value, f"{self.path}[{key[:80]!r}]")

    def items(self, most: int) -> Iterator[TypedValue]:
        """The values of a list."""
        if not isinstance(self.value, list):
            raise self.fault(f"is {_kind(self.value)}, not a list")
        if len(self.value) > most:
            raise self.fault(f"has {len(self.value)} items; the limit is {most}")
        for index, value in enumerate(self.value):
            yield TypedValue(value, f"{self.path}[{index}]")

    def text(self, most: int, form: re.Pattern[str] | None = None, what: str = "") -> str:
        """A string of at most `most` characters that `form` matches as a whole; `what` says what that is."""
        if not isinstance(self.value, str):
            raise self.fault(f"is {_kind(self.value)}, not a string")
        if len(self.value) > most:
            raise self.fault(f"has {len(self.value)} characters; the limit is {most}")
        if form and not form.fullmatch(self.value):
            raise self.fault(f"{self.value[:80]!r} is no {what}")
        return self.value

    def one_of(self, words: Collection[str], what: str) -> str:
        """One of these strings."""
        word = self.text(200)
        if word not in words:
            raise self.fault(f"{word[:80]!r} is no {what}")
        return word

    def integer(self, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """An integer between the two, which both belong to it."""
        if type(self.value) is not int:
            raise self.fault(f"is {_kind(self.value)}, not an integer")
        if not least <= self.value <= most:
            raise self.fault(f"{self.value} is not between {least} and {most}")
        return self.value

    def boolean(self) -> bool:
        """true or false."""
        if type(self.value) is not bool:
            raise self.fault(f"is {_kind(self.value)}, not true or false")
        return self.value

    def or_none(self, read: Callable[[TypedValue], T]) -> T | None:
        """null, or what `read` makes of it."""
        return None if self.value is None else read(self)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
