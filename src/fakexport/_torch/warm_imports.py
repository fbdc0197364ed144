"""Modules that torch imports in the first trace of a process. Seen on torch 2.11 to 2.13."""

from __future__ import annotations

import importlib
from contextlib import suppress

_MODULES = ("torch._subclasses.schema_check_mode",)


def import_before_fork() -> None:
    """Import them now, so that each forked process has them."""
    for name in _MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
