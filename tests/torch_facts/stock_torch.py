"""Stock torch in a process of its own: a registered guard stays for the life of a process."""

from dataclasses import dataclass

from tests.forked import run_python


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
    """Run a program on torch as it is, without fakexport."""
    done = run_python(PREAMBLE + program)
    return Ended(done.returncode, done.stdout, done.stderr)
