"""Find the user's source line of a node, and shorten file paths of the exporting machine."""

from __future__ import annotations

import functools
import re
import sys
import sysconfig
from pathlib import Path

import torch
from torch.fx import Node

from fakexport.rules.diagnostics import Span

# Non-strict export strips the trace's leading blanks; strict export adds lines of carets between frames.
_FRAME = re.compile(r'^[ \t]*File "(?P<path>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$', re.M)

# Generated code has names like `<eval_with_key>.7`; these two are code that a user typed.
_TYPED_BY_PEOPLE = ("<stdin>", "<ipython-input")

# A program may have been exported on another machine, so installed packages are identified by folder, too.
_FOREIGN_LIBRARY = re.compile(
    # typer, click and rich belong to the command line: they call fakexport, and no model calls them.
    r"[/\\](?:site|dist)-packages[/\\](?:(?:torch|fakexport|typer|click|rich)[/\\]|typing_extensions\.py)"
    r"|[/\\]lib[/\\]python3\.\d+[/\\](?!(?:site|dist)-packages[/\\])"
    # Paths of installed packages in an archive start at the package.
    r"|^(?:torch|fakexport|lib/python3\.\d+)/",
    re.IGNORECASE,
)


# The script that starts the command line.
_COMMAND = re.compile(r"[/\\](?:bin|Scripts)[/\\]fakexport[^/\\]*$", re.IGNORECASE)


def _own_folders() -> tuple[str, ...]:
    package = Path(__file__).resolve().parents[2]
    return (f"{Path(torch.__file__).resolve().parent}/", f"{package}/")


_OWN_FOLDERS = _own_folders()
_OWN_PACKAGE = _OWN_FOLDERS[1]
_STANDARD_LIBRARY = f"{sysconfig.get_paths()['stdlib']}/"


def source_span(node: Node) -> Span | None:
    """Return the innermost frame of user code in the node's stack trace, or None if there is none.

    Frames of torch, fakexport, Python's standard library and generated code are skipped; model libraries
    (transformers, timm) count as user code. A stack trace has no columns. Placeholders have no trace. For the
    branches of `torch.cond`, non-strict export records only generated code.

    Returns:
        A span with `origin="stack_trace"`, and with the path in the trace, which is usually absolute.
    """
    return span_of_trace(node.meta.get("stack_trace"))


def reading_span(node: Node) -> Span | None:
    """Return the source line of the first node that reads a value and has a source line, or None."""
    return next(filter(None, map(source_span, node.users)), None)


def span_of_trace(trace: str | None) -> Span | None:
    """Return the span for the text of a stack trace, from a node or from an error message of torch."""
    if not trace:
        return None
    for frame in reversed(list(_FRAME.finditer(trace))):
        if is_user_code(frame["path"]):
            return Span(
                path=frame["path"], line=int(frame["line"]), function=frame["function"], origin="stack_trace"
            )
    return None


def is_own_code(path: str) -> bool:
    """Return whether a file in a stack trace belongs to this installation of fakexport."""
    return path.startswith(_OWN_PACKAGE)


@functools.cache
def is_user_code(path: str) -> bool:
    """Return whether a file in a stack trace was written by the author of the model or of a model library."""
    if path.startswith("<"):
        return path.startswith(_TYPED_BY_PEOPLE)
    if path.startswith(_OWN_FOLDERS) or _FOREIGN_LIBRARY.search(path) or _COMMAND.search(path):
        return False
    return not (path.startswith(_STANDARD_LIBRARY) and "-packages" not in path)


def is_model_code(path: str) -> bool:
    """Return whether a file in a stack trace is user code and not part of an installed package."""
    return is_user_code(path) and "-packages" not in path


def is_library_code(path: str) -> bool:
    """Return whether a file belongs to an installed package of models, such as transformers."""
    return is_user_code(path) and "-packages" in path


_FILE = re.compile(r'(?m)^( *File )"([^"\n]*)"')
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_NUMBERED = re.compile(r"<([^<>\d]*)[\d.]*>(?:\.\d+)?")
_ABSOLUTE = re.compile(r"(?:[A-Za-z]:)?/")


class SourcePaths:
    """Shortens file paths in the stack traces of one program. Repeated traces are rewritten only once.

    Args:
        root: Folder of the user's project. Paths below it become relative.
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
        """Return a short path: `pkg/x.py` for a package, `lib/python3.11/x.py` for the standard library, a
        path relative to the root, or only the file name.

        The number in names of generated code (`<eval_with_key>.17`) is removed, because it depends on what
        the process did before.
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
