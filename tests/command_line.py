"""The command line in a process of its own, as a user runs it."""

from __future__ import annotations

import subprocess
import sys

from tests.forked import run_module

__all__ = ["fakexport", "fakexport_from_nothing"]


def fakexport(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs `fakexport ARGUMENTS`, which must end with this exit code."""
    return _expected(code, run_module("fakexport", *arguments))


def fakexport_from_nothing(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The same with an interpreter started for it: torch reads some variables when it is imported."""
    command = [sys.executable, "-m", "fakexport", *map(str, arguments)]
    return _expected(code, subprocess.run(command, capture_output=True, text=True, check=False))


def _expected(code: int, done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == code, done.stdout + done.stderr
    return done
