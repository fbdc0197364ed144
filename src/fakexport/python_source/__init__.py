"""A program as a Python file: `source`. The steps are reading, regions, the tree of modules, and the text."""

from .error import PythonSourceError
from .source import PythonSource, source, write_source
