"""Run each measurement in a new process, so that caches and memory of one do not affect the next."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["in_a_process"]

ROOT = Path(__file__).parents[1]


def in_a_process(module: str, *arguments: str) -> dict[str, Any]:
    """Run `python -m module arguments`, and return the JSON object in the last line of its output."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
