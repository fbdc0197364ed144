"""Warn if several targets or sources run in one process, because they can affect each other."""

from __future__ import annotations

import warnings

_SHARED = "targets and sources share a process"


class SharedProcess(UserWarning):
    """Targets or sources share a process, although they should run in separate processes."""


def warn_of_shared_process(reason: str, *, stacklevel: int) -> None:
    """Warn that targets or sources share a process."""
    warnings.warn(SharedProcess(f"{_SHARED}: {reason}"), stacklevel=stacklevel + 1)
