"""Context-local stacks: values that are visible only in one thread or asyncio task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class Entry(Generic[T]):
    """A value on a stack. Entries can be closed in any order, from any thread or task."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.is_open = True


class ContextStack(Generic[T]):
    """A stack with a separate copy for each context (thread or asyncio task).

    Code that runs in a copy of a context starts with the entries of that context.

    Args:
        name: A name for debuggers. Create each stack once per process: Python never frees a `ContextVar`.
    Attributes:
        entries: The entries of the current context. Some may be closed.
    """

    def __init__(self, name: str) -> None:
        self.entries: ContextVar[tuple[Entry[T], ...]] = ContextVar(name, default=())

    def push(self, value: T) -> Entry[T]:
        """Push a value onto the stack of the current context."""
        entry = Entry(value)
        self.entries.set((*self._open(), entry))
        return entry

    def close(self, entry: Entry[T]) -> None:
        """Close an entry in every context that has it."""
        entry.is_open = False
        self.entries.set(self._open())

    def top(self, default: T) -> T:
        """Return the value of the topmost open entry in the current context; `default` if there is none."""
        for entry in reversed(self.entries.get()):
            if entry.is_open:
                return entry.value
        return default

    def _open(self) -> tuple[Entry[T], ...]:
        return tuple(entry for entry in self.entries.get() if entry.is_open)
