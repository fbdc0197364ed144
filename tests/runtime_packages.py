"""The packages of the runtimes that tests ask, which warn about their own code."""

from __future__ import annotations

import shutil

import pytest

from fakexport.deploy import RUNTIMES

# coremltools calls its own deprecated functions, and leaves folders to the garbage collector.
QUIET = [
    pytest.mark.filterwarnings("ignore:Function _TORCH_OPS_REGISTRY:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]


def needs(runtime: str) -> None:
    """Skip the test if a package of the runtime is not installed."""
    for package in RUNTIMES[runtime].packages:
        pytest.importorskip(package)
    if runtime == "aoti" and shutil.which("g++") is None:
        pytest.skip("needs g++")
