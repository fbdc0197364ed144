"""Write a program as a Python file with `to_python`, in three steps: regions, module tree, text."""

from .literal_text import PythonSourceError
from .source import PythonSource, to_python, write_source
