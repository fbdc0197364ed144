"""What cannot be written as Python."""

from __future__ import annotations

__all__ = ["SourceError"]


class SourceError(ValueError):
    """A program holds something that a Python file cannot; the text is one line."""
