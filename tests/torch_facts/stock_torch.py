"""Stock torch in a process of its own: a registered guard stays for the life of a process."""

import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (negative for a signal) and what it wrote."""

    code: int
    output: str
    error: str


PREAMBLE = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
"""


def run_stock(program: str) -> Ended:
    """Run a program on torch as it is, in an interpreter in which fakexport has done nothing."""
    command = [sys.executable, "-W", "ignore", "-c", PREAMBLE + program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)
