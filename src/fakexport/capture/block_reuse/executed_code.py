"""Which Python code ran during a call, and what of the process it can see by name."""

from __future__ import annotations

import gc
import re
import sys
from _lsprof import Profiler
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from types import CodeType, ModuleType
from typing import Any

from fakexport._torch.kernel_calls import around_kernels
from fakexport.program import is_user_code

# From Python 3.12 on, a profiler that is disabled and enabled has all code prepared for it again.
_IS_CHEAP_TO_PAUSE = sys.version_info < (3, 12)
# What code may ask for that is neither an argument nor reachable from one, nor found by name.
_SUSPECT_NAMES = frozenset(
    {
        "__dict__",
        "__closure__",
        "_getframe",
        "currentframe",
        "_base",
        "eval",
        "grad_fn",
        "exec",
        "globals",
        "id",
        "input",
        "locals",
        "open",
        "print",
        "setprofile",
        "settrace",
        "vars",
        "__subclasses__",
        "get_objects",
        "get_referrers",
        "perf_counter",
        "register_forward_hook",
        "register_forward_pre_hook",
    }
)
_SUSPECT_MODULES = frozenset(
    {"time", "random", "uuid", "secrets", "datetime", "socket", "subprocess", "gc", "inspect", "threading"}
)


# What torch computes with, and a hook of imports. None of them keeps what a model could have changed.
_OF_TORCH = re.compile(
    r"[/\\\\](?:site|dist)-packages[/\\\\](?:sympy|mpmath|numpy|networkx|typing_extensions|_distutils_hack)\b"
)


# What `inspect` asks the interpreter and not a function.
_FRAMES = frozenset({"stack", "trace", "getouterframes", "getinnerframes", "getmembers", "getframeinfo"})


def _suspect_modules(code: CodeType) -> frozenset[str]:
    is_signature = "signature" in code.co_names and not _FRAMES & set(code.co_names)
    return _SUSPECT_MODULES - {"inspect"} if is_signature else _SUSPECT_MODULES


@cache
def is_trusted_file(path: str) -> bool:
    """Return whether a file belongs to Python, torch or fakexport: what they keep is seen by other means."""
    return not is_user_code(path) or _OF_TORCH.search(path) is not None


def _modules_by_file() -> dict[str, dict[str, Any] | None]:
    """Return the names of each module by its file; None for a file that is several modules."""
    found: dict[str, dict[str, Any] | None] = {}
    for module in list(sys.modules.values()):
        path = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(path, str):
            found[path] = vars(module) if found.get(path, vars(module)) is vars(module) else None
    return found


class ExecutedCode:
    """The code of the model and its libraries that ran, with its globals."""

    def __init__(self) -> None:
        self.found: dict[CodeType, dict[str, Any] | None] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Enter a context in which the code that runs is noted. No other profiler may be active."""
        # In C: a callback in Python would double the time of the trace.
        profile = Profiler(builtins=False)
        is_collecting = gc.isenabled()
        gc.disable()  # Callbacks of the collector are not the model's code.

        def enable() -> None:
            profile.enable(subcalls=False, builtins=False)

        # Nine of ten functions that run are torch's, inside of its operators.
        enable()
        try:
            with around_kernels(profile.disable, enable) if _IS_CHEAP_TO_PAUSE else nullcontext():
                yield
        finally:
            profile.disable()
            if is_collecting:
                gc.enable()
            ran = {entry.code for entry in profile.getstats() if isinstance(entry.code, CodeType)}
            new = {code for code in ran - self.found.keys() if not is_trusted_file(code.co_filename)}
            modules = _modules_by_file() if new else {}
            self.found |= {code: modules.get(code.co_filename) for code in new}

    @property
    def names(self) -> frozenset[str]:
        """All names that the code uses, and its texts: `getattr` takes one."""
        return frozenset(
            name for code in self.found for name in (*code.co_names, *code.co_consts) if isinstance(name, str)
        )

    def suspicion(self) -> str | None:
        """Return what the code asks for that nothing here could tell; None for usual code."""
        for code, names in self.found.items():
            if names is None:
                return f"{code.co_name} is in a file that is not a module"
            for name in code.co_names:
                if name in _SUSPECT_NAMES:
                    return f"{code.co_name} uses `{name}`"
                value = names.get(name)
                owner = getattr(value, "__module__", None) or getattr(value, "__name__", None)
                if isinstance(owner, str) and owner.partition(".")[0] in _suspect_modules(code):
                    return f"{code.co_name} uses `{owner}`"
        return None
