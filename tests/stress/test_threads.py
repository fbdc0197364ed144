"""The short form of `make stress`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_no_order_of_threads_ends_the_process_or_changes_an_answer() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.stress.threads", "15"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONMALLOC": "debug"},
    )

    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
