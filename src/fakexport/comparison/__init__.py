"""A program and its eager model side by side, kernel by kernel: `compare`."""

from .compare import compare
from .side_by_side import compare_source
