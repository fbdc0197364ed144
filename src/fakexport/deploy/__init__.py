"""From a bound program to something that runs."""

from .python_file import write_source
from .run import run

__all__ = ["run", "write_source"]
