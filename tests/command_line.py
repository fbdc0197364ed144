"""The command line in a process of its own, as a user runs it."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["fakexport"]


def fakexport(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs `fakexport ARGUMENTS`, which must end with this exit code."""
    command = [sys.executable, "-m", "fakexport", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done
