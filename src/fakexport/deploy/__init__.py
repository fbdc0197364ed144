"""From a bound program to something that runs."""

from .outputs import write_outputs
from .run import run

__all__ = ["run", "write_outputs"]
