"""The command line in this process, or in one of its own, as a user runs it."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

from fakexport.cli import main
from tests.forked import run_module

__all__ = ["fakexport", "fakexport_from_nothing", "fakexport_here"]


def fakexport_here(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs `fakexport ARGUMENTS` in this process: a first export in a new one takes a second longer."""
    given, out, err = [*map(str, arguments)], io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        ended = main(given)
    return _expected(code, subprocess.CompletedProcess(given, ended, out.getvalue(), err.getvalue()))


def fakexport(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs `fakexport ARGUMENTS` in a process of its own, which must end with this exit code."""
    return _expected(code, run_module("fakexport", *arguments))


def fakexport_from_nothing(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The same with an interpreter started for it: torch reads some variables when it is imported."""
    command = [sys.executable, "-m", "fakexport", *map(str, arguments)]
    return _expected(code, subprocess.run(command, capture_output=True, text=True, check=False))


def _expected(code: int, done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == code, done.stdout + done.stderr
    return done
