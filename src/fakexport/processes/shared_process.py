"""What to say where several answers come from one process, so that what one left may decide another."""

from __future__ import annotations

import warnings

_SHARED = "targets and sources share a process"


class SharedProcess(UserWarning):
    """Answers that should come from a process each came from one."""


def warn_of_shared_process(reason: str, *, stacklevel: int) -> None:
    """Warn that answers share a process."""
    warnings.warn(SharedProcess(f"{_SHARED}: {reason}"), stacklevel=stacklevel + 1)
