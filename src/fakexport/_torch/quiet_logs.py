"""Silence torch's logs and prints about failures that fakexport reports itself. Seen on torch 2.13.

When a trace fails, torch logs messages, such as the traceback of an operator's fake kernel or "unsupported",
and prints the partial graph to stderr. Both would appear in the output of a script or of pytest. When torchao
(0.18) is imported, it logs which native libraries it cannot load, and the logs reach `logging.lastResort`.

Source: `torch/_subclasses/fake_tensor.py:_dispatch_impl`, `torch/fx/experimental/symbolic_shapes.py`,
`torch/export/_trace.py:_log_export_wrapper`; `torch/_logging/_internal.py:_init_logs`, which adds handlers
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
    """Drop warnings and errors logged by torch, torchao and transformers, and graphs printed by torch.

    Only this thread or task is silenced; other threads log as before. Messages that `TORCH_LOGS` enables have
    lower levels and are kept. Blocks may overlap and exit in any order. The last block to exit restores the
    original state.
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
    """Disable `torch_logs_silenced` in this block, for debugging torch."""
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
        builtins.print(*values, **options)  # noqa: T201 (a print by torch in another thread)


class _Installation:
    """Install the log filter and the replacement of `print`. All blocks share one installation."""

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
    # Imported here because `torch_logs_allowed` must also work in a process without torch.
    from torch.export import _trace

    from .patching import Patches

    return Patches({(_trace, "print"): _print})


def _handlers() -> Iterator[logging.Handler]:
    """Yield the handlers of the libraries' loggers and of the root logger, and `logging.lastResort`."""
    known = logging.root.manager.loggerDict
    names = [name for name in list(known) if name.partition(".")[0] in _LIBRARIES]
    for logger in (logging.root, *(known[name] for name in names)):
        yield from getattr(logger, "handlers", ())
    if logging.lastResort is not None:
        yield logging.lastResort


_installation = _Installation()
