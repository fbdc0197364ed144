"""Which code of the model and its libraries runs.

The interpreter itself notes it: a callback in Python for each call would double the time of a trace. Inside
of torch's operators nothing is noted; nine of ten functions that run there are torch's.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType

from fakexport._torch.kernel_calls import around_kernels

from .known_libraries import is_trusted_file

if sys.version_info >= (3, 12):
    from sys import monitoring

    _EVENTS = (monitoring.events.PY_START, monitoring.events.PY_RESUME, monitoring.events.PY_THROW)
    # Others have the first ones by agreement: debuggers, coverage, profilers.
    _TOOLS = (4, 3)

    def _free_tool() -> int | None:
        return next((tool for tool in _TOOLS if monitoring.get_tool(tool) is None), None)

    def can_note() -> bool:
        """Return whether `noted` would see the code that runs."""
        return sys.getprofile() is None and _free_tool() is not None

    @contextmanager
    def _noting(found: set[CodeType]) -> Iterator[None]:
        tool = _free_tool()
        assert tool is not None, "can_note() said so"

        is_inside = [False]  # Of one of torch's operators.

        def start(code: CodeType, *_: object) -> object:
            if is_inside[0] and not is_trusted_file(code.co_filename):
                return None
            found.add(code)
            return monitoring.DISABLE  # Once is enough, for each place.

        def throw(code: CodeType, *_: object) -> None:
            start(code)  # It cannot be disabled.

        def leave() -> None:
            is_inside[0] = True

        def enter() -> None:
            is_inside[0] = False

        monitoring.use_tool_id(tool, "fakexport")
        try:
            for event, callback in zip(_EVENTS, (start, start, throw), strict=True):
                monitoring.register_callback(tool, event, callback)
            monitoring.restart_events()
            monitoring.set_events(tool, _EVENTS[0] | _EVENTS[1] | _EVENTS[2])
            with around_kernels(leave, enter):
                yield
        finally:
            monitoring.set_events(tool, 0)
            for event in _EVENTS:
                monitoring.register_callback(tool, event, None)
            monitoring.free_tool_id(tool)

else:
    from _lsprof import Profiler

    def can_note() -> bool:
        """Return whether `noted` would see the code that runs."""
        return sys.getprofile() is None

    @contextmanager
    def _noting(found: set[CodeType]) -> Iterator[None]:
        profile = Profiler(builtins=False)

        def enable() -> None:
            profile.enable(subcalls=False, builtins=False)

        enable()
        try:
            with around_kernels(profile.disable, enable):
                yield
        finally:
            profile.disable()
            found |= {entry.code for entry in profile.getstats() if isinstance(entry.code, CodeType)}


@contextmanager
def noted() -> Iterator[set[CodeType]]:
    """Enter a context that yields a set, which afterwards has the code that ran, and some of torch's.

    `can_note()` tells whether this works. From Python 3.12 on it has code of other threads as well.
    """
    found: set[CodeType] = set()
    is_collecting = gc.isenabled()
    gc.disable()  # Callbacks of the collector are not the model's code.
    try:
        with _noting(found):
            yield found
    finally:
        if is_collecting:
            gc.enable()
