"""A program as a Python file: `source`. The steps are regions, the tree of modules, and the text."""

from .literal_text import PythonSourceError
from .source import PythonSource, source, write_source
