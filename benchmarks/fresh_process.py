"""Measuring in processes of their own, so that one measurement does not warm or fill the next."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["in_a_process"]

ROOT = Path(__file__).parents[1]


def in_a_process(module: str, *arguments: str) -> dict[str, Any]:
    """What `python -m module arguments` prints as JSON in its last line."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
