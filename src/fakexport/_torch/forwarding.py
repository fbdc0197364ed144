"""A dict and a class that forward to another dict or class, which is looked up on each use."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any


class ForwardingDict(UserDict[Any, Any]):
    """A dict that forwards to the dict that `value` returns."""

    def __init__(self, value: Callable[[], Any]) -> None:
        self._value = value

    @property
    def data(self) -> Any:  # type: ignore[override] # Looked up on each use.
        return self._value()

    def get(self, key: Any, default: Any = None) -> Any:
        return self._value().get(key, default)


class ForwardingClass(type):
    """A class that forwards to the class that `_value` returns. `isinstance` also accepts `_original`."""

    _value: Callable[[], Any]
    _original: type

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._value()(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (cls._value(), cls._original))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, (cls._value(), cls._original))

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._value(), name)
