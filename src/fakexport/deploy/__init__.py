"""From a bound program to something that runs, can be read, or is held against its model."""

from .inputs import read_inputs
from .outputs import write_outputs
from .python_file import write_source
from .run import run
from .side_by_side import compare_source

__all__ = ["compare_source", "read_inputs", "run", "write_outputs", "write_source"]
