"""A `check` that does what a test says, instead of the real one."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fakexport.exporting.capture import Request


def install_check(monkeypatch: Any, check: Callable[..., Any], **others: Callable[..., Any]) -> None:
    """Puts a module with these functions where the commands import `fakexport.checking` from.

    The commands pass the arguments of `check` as a value.
    """

    def report_on(request: Request, *, on_progress: Any, wanted: Any) -> Any:
        no_options = ("args", "kwargs", "parallel_plan", "rank", "sizes", "example_shapes")
        call = {name: value for name, value in vars(request).items() if name not in no_options or value}
        source, prepare = call.pop("source"), call.pop("prepare")
        if prepare is not None:
            prepare()
        return check(source, **call, on_progress=on_progress)

    module = ModuleType("fakexport.checking")
    values = {"Wanted": dict, "report_on": report_on}
    for name, function in {"check": check, **values, **others}.items():
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, "fakexport.checking", module)
