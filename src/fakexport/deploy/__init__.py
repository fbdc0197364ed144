"""From a bound program to something that runs."""

from .run import run

__all__ = ["run"]
