"""A `check` that does what a test says, instead of the real one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def install_check(monkeypatch: Any, check: Callable[..., Any], **others: Callable[..., Any]) -> None:
    """Puts a module with these functions where the commands import `fakexport.checking` from.

    The commands pass the arguments of `check` as a value.
    """

    def report_on(call: dict[str, Any], *, on_progress: Any, wanted: Any) -> Any:
        source, prepare = call.pop("source"), call.pop("prepare")
        if prepare is not None:
            prepare()
        return check(source, **call, on_progress=on_progress)

    module = ModuleType("fakexport.checking")
    values = {"CheckCall": dict, "Wanted": dict, "report_on": report_on}
    for name, function in {"check": check, **values, **others}.items():
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, "fakexport.checking", module)
