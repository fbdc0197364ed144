"""Compare a program with its eager model, kernel by kernel: `compare`."""

from .compare import compare
from .error import distance, largest
from .side_by_side import compare_source
