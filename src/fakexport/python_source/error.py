"""What cannot be written as Python."""

from __future__ import annotations

from fakexport.error import FakexportError


class PythonSourceError(FakexportError, ValueError):
    """A program holds something that a Python file cannot; the text is one line."""
