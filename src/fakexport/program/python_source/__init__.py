"""A program as a Python file: `source`. The steps are reading, regions, the tree of modules, and the text."""

from .error import SourceError
from .source import PythonSource, source

__all__ = ["PythonSource", "SourceError", "source"]
