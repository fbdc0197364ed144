"""Values that hold in one thread or asyncio task, whatever other threads and tasks have at the same time."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class Entry(Generic[T]):
    """A value on a stack, until it is closed: in any order, and from any thread or task."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.is_open = True


class ContextStack(Generic[T]):
    """A stack of its own for each context. What starts in a copy of a context begins with its entries.

    Args:
        name: For debuggers. A stack should be made once per process: Python keeps its variable.
    """

    def __init__(self, name: str) -> None:
        self._entries: ContextVar[tuple[Entry[T], ...]] = ContextVar(name, default=())

    def push(self, value: T) -> Entry[T]:
        """Put a value on top of the stack of this context."""
        entry = Entry(value)
        self._entries.set((*self._open(), entry))
        return entry

    def close(self, entry: Entry[T]) -> None:
        """End an entry for every context that has it."""
        entry.is_open = False
        self._entries.set(self._open())

    def top(self, default: T) -> T:
        """Return the value of the last entry of this context that is open, else the default."""
        for entry in reversed(self._entries.get()):
            if entry.is_open:
                return entry.value
        return default

    def _open(self) -> tuple[Entry[T], ...]:
        return tuple(entry for entry in self._entries.get() if entry.is_open)
