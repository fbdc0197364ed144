"""Text of an unknown author, as it may be shown."""

from __future__ import annotations

__all__ = ["escaped"]


def escaped(text: str) -> str:
    """The text as one line whose characters all print, so that no name can steer a terminal or break a line.

    Control characters, line ends and marks of writing direction are shown as Python escapes.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
