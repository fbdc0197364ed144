"""Check many models: a matrix of checks, a process for each, a line of JSON for each. Free of torch."""

from .changed_items import changed_items
from .comparison import compare_runs
from .run_file import STATUSES, RunFile, SweepRecord, read_run
from .sweep import Sweep, Tally, run_sweep
from .sweep_item import SweepItem
from .zoo_file import read_zoo

__all__ = [
    "STATUSES",
    "RunFile",
    "Sweep",
    "SweepItem",
    "SweepRecord",
    "Tally",
    "changed_items",
    "compare_runs",
    "read_run",
    "read_zoo",
    "run_sweep",
]
