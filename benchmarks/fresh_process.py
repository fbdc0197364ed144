"""Measuring in processes of their own, so that one measurement does not warm or fill the next."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["in_a_process", "peak_rss_bytes"]

ROOT = Path(__file__).parents[1]


def peak_rss_bytes() -> int:
    """The most memory that this process held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB.


def in_a_process(module: str, *arguments: str) -> dict[str, Any]:
    """What `python -m module arguments` prints as JSON in its last line."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
