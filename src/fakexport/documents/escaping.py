"""Text from an untrusted author, made safe to show."""

from __future__ import annotations


def escaped(text: str) -> str:
    """Return the text as one line of printable characters: no name can steer a terminal or break a line.

    Control characters, line ends and marks of writing direction are shown as Python escapes.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
