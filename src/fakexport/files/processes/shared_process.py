"""Warn if several targets or sources run in one process, because one can affect another."""

from __future__ import annotations

import warnings

_SHARED = "targets and sources share a process"


class SharedProcess(UserWarning):
    """Warning that targets or sources that should run in separate processes share one."""


def warn_of_shared_process(reason: str, *, stacklevel: int) -> None:
    """Warn that targets or sources share a process."""
    warnings.warn(SharedProcess(f"{_SHARED}: {reason}"), stacklevel=stacklevel + 1)
