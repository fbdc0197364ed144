"""What torch logs and prints of failures that fakexport reports itself. Seen on torch 2.13.

While a trace fails, torch logs the traceback of an operator's fake kernel, that it finds no user code, or
that a case is unsupported, and prints the graph so far on stderr: into the output of a script, or of pytest.
torchao (0.18) logs when it is imported, by the handler of last resort, which native libraries it cannot load.

Source: `torch/_subclasses/fake_tensor.py:_dispatch_impl`, `torch/fx/experimental/symbolic_shapes.py`,
`torch/export/_trace.py:_log_export_wrapper`; `torch/_logging/_internal.py:_init_logs`, which gives handlers
to `torch` and to many loggers below it.
"""

from __future__ import annotations

import builtins
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .patching import Patches

_LIBRARIES = ("torch", "torchao", "transformers")
_is_silent: ContextVar[bool] = ContextVar("fakexport_is_silent", default=False)
_is_allowed: ContextVar[bool] = ContextVar("fakexport_is_allowed", default=False)


@contextmanager
def torch_logs_silenced() -> Iterator[None]:
    """Drop warnings and errors that torch, torchao and transformers log in the block, and graphs of torch.

    Only those of this thread or task: other threads log as before. What `TORCH_LOGS` asks for is of lower
    levels, and stays. Blocks may overlap in any order; after the last one everything is as it was.
    """
    if _is_allowed.get():
        yield
        return
    token = _is_silent.set(True)
    _installation.enter()
    try:
        yield
    finally:
        _installation.leave()
        _is_silent.reset(token)


@contextmanager
def torch_logs_allowed() -> Iterator[None]:
    """Enter a context in which `torch_logs_silenced` does nothing, so that torch can be debugged."""
    token = _is_allowed.set(True)
    try:
        yield
    finally:
        _is_allowed.reset(token)


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        is_of_library = record.name.partition(".")[0] in _LIBRARIES
        return not (is_of_library and record.levelno >= logging.WARNING and _is_silent.get())


def _print(*values: Any, **options: Any) -> None:
    if not _is_silent.get():
        builtins.print(*values, **options)  # noqa: T201 (torch's, of another thread)


class _Installation:
    """The filter on the handlers and torch's `print`, once for all blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._filter = _Filter()
        self._handlers: list[logging.Handler] = []
        self._patches: Patches | None = None

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._patches = self._patches or _patches()
                self._handlers = list(_handlers())
                for handler in self._handlers:
                    handler.addFilter(self._filter)
                self._patches.__enter__()

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._patches is not None:
                self._patches.__exit__(None, None, None)
                for handler in self._handlers:
                    handler.removeFilter(self._filter)


def _patches() -> Patches:
    # Imported here: `torch_logs_allowed` is also for a process without torch.
    from torch.export import _trace

    from .patching import Patches

    return Patches({(_trace, "print"): _print})


def _handlers() -> Iterator[logging.Handler]:
    """Yield the handlers of the libraries' loggers and of the root logger, and that of last resort."""
    known = logging.root.manager.loggerDict
    names = [name for name in list(known) if name.partition(".")[0] in _LIBRARIES]
    for logger in (logging.root, *(known[name] for name in names)):
        yield from getattr(logger, "handlers", ())
    if logging.lastResort is not None:
        yield logging.lastResort


_installation = _Installation()
