"""Paths of source files in a program, without the folders of the machine that exported it."""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path

_FILE = re.compile(r'(?m)^( *File )"([^"\n]*)"')
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_NUMBERED = re.compile(r"<([^<>\d]*)[\d.]*>(?:\.\d+)?")
_ABSOLUTE = re.compile(r"(?:[A-Za-z]:)?/")


class SourcePaths:
    """Shortens the paths in the stack traces of one program; a trace that repeats is rewritten once.

    Args:
        root: Folder of the user's project: files below it are named relative to it.
    """

    def __init__(self, root: str | Path | None) -> None:
        self._root = None if root is None else Path(root).resolve().as_posix().rstrip("/") + "/"
        self._library = Path(sysconfig.get_paths()["stdlib"]).as_posix() + "/"
        self._traces: dict[str, str] = {}

    def in_trace(self, trace: str) -> str:
        """Return a stack trace with every `File "..."` shortened."""
        known = self._traces.get(trace)
        if known is None:
            known = _FILE.sub(lambda match: f'{match[1]}"{self.shortened(match[2])}"', trace)
            self._traces[trace] = known
        return known

    def shortened(self, path: str) -> str:
        """Return `pkg/x.py` of a package, `lib/python3.11/x.py`, relative to the root, or the bare name.

        Generated code loses the number in its name (`<eval_with_key>.17`), which counts what the process did
        before.
        """
        path = path.replace("\\", "/") if re.match(r"[A-Za-z]:\\", path) else path
        if path.startswith("<"):
            return _NUMBERED.sub(r"<\1>", path)
        if not _ABSOLUTE.match(path):
            return path
        if match := _PACKAGES.match(path):
            return path[match.end() :]
        if self._root is not None and path.startswith(self._root):
            return path[len(self._root) :]
        if path.startswith(self._library):
            return f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/{path[len(self._library) :]}"
        return path.rpartition("/")[2]
