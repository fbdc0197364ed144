"""A program as a Python file: `source`. The steps are reading, regions, the tree of modules, and the text.

The operations of the first step can also be run one by one, which `comparison` does.
"""

from .error import PythonSourceError
from .reading import read_program
from .regions import used_values
from .source import PythonSource, source, write_source
from .values import Body, Context, Operation, Stored, Value, mapped
