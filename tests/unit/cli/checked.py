"""A `check` that does what a test says, in place of the real one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def install_check(monkeypatch: Any, check: Callable[..., Any], **others: Callable[..., Any]) -> None:
    """Puts a module with these functions where the commands import `fakexport.checking` from."""
    module = ModuleType("fakexport.checking")
    for name, function in {"check": check, **others}.items():
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, "fakexport.checking", module)
