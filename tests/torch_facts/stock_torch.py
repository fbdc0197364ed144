"""Stock torch in a process of its own: a registered guard stays for the life of a process."""

import subprocess
import sys

from tests.forked import run_python

_PREAMBLE = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
"""


def run_stock(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program on torch as it is, in a process where an export and a check have ended.

    Had they left anything behind, the program would find what stock torch lacks. The exit code is negative
    for a signal.
    """
    return run_python(_PREAMBLE + program)


def run_stock_from_nothing(program: str) -> subprocess.CompletedProcess[str]:
    """The same in a new interpreter, for what an export changes for the life of a process."""
    command = [sys.executable, "-W", "ignore", "-c", _PREAMBLE + program]
    return subprocess.run(command, capture_output=True, text=True, check=False)
