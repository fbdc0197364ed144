"""How the tests run: each process with one thread, and nobody reading torch's trace of its own work."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# torch reads it when it is imported, here and in the processes that tests start. The models are tiny, and
# pytest-xdist has a process for each core: more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Keeps pytest's log capture off `torch.__trace`.

    pytest 9 attaches a handler to every logger that does not propagate. Where that one has a handler, torch
    extracts a stack and writes JSON at each step of an export.
    """
    logging.getLogger("torch.__trace").propagate = True


@pytest.fixture(scope="module", autouse=True)
def a_file_leaves_nothing_to_the_next(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Which files run before a file in its process is pytest-xdist's choice, and differs between runs."""
    hook, folder, modules = sys.excepthook, Path.cwd(), set(sys.modules)
    yield
    # torch puts a process group's rank before each line of a traceback, also when the group is gone.
    sys.excepthook = hook
    os.chdir(folder)
    written = tmp_path_factory.getbasetemp()
    for name in sys.modules.keys() - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if isinstance(file, str) and Path(file).is_relative_to(written):
            del sys.modules[name]
