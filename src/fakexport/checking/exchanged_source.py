"""A process of its own that imports changed copies of source files, and ends after a time."""

from __future__ import annotations

import linecache
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from math import ceil
from types import CodeType

from fakexport.error import InvalidValue


class AlreadyImported(InvalidValue):
    """A file was imported before its text could be exchanged."""


def stop_after(limit_s: float) -> None:
    """End this process at a limit, and let it write nothing to stdout and stderr."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(ceil(limit_s))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    warnings.simplefilter("ignore")


def exchange_source(texts: Mapping[str, str]) -> None:
    """Let imports of this process, for good, take other texts than those of the files.

    Raises:
        AlreadyImported: One of the files is imported.
    """
    for module in list(sys.modules.values()):
        if (path := getattr(module, "__file__", None)) in texts:
            raise AlreadyImported(f"{path} is imported already")
    for path, text in texts.items():
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    stock = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        path = loader.get_filename(name)
        if path in texts:
            return compile(texts[path], path, "exec", dont_inherit=True)
        return stock(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
