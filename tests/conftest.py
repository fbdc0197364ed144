"""How the tests run: each process with one thread, and nobody reading torch's trace of its own work."""

from __future__ import annotations

import logging
import os

# torch reads it when it is imported, here and in the processes that tests start. The models are tiny, and
# pytest-xdist has a process for each core: more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Keeps pytest's log capture off `torch.__trace`.

    pytest 9 attaches a handler to every logger that does not propagate. Where that one has a handler, torch
    extracts a stack and writes JSON at each step of an export.
    """
    logging.getLogger("torch.__trace").propagate = True
