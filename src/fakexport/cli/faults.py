"""What went wrong, for the reader of stderr: one line for bad usage, FE001 for an internal error."""

from __future__ import annotations

import errno
import importlib.metadata
import platform
import shlex
import traceback
from collections.abc import Sequence
from pathlib import Path

import typer

from fakexport._version import __version__
from fakexport.diagnostics import Diagnostic, Label, Span, escaped, render_text
from fakexport.error import FakexportError
from fakexport.processes import RemoteTraceback
from fakexport.report import missing_package
from fakexport.rules import rule

# Typer has carried its own copy of click since 0.22, and names this class only as a base.
_CLICK_EXCEPTION = typer.BadParameter.__mro__[2]
# Which the system may say at any time, also of a file without a name.
_OF_THE_SYSTEM = frozenset(
    (
        errno.EBADF,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EROFS,
    )
)
# What the dynamic loader says where there is no room for a library, which Python raises as an ImportError.
_NO_ROOM = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")


def usage_fault(error: BaseException) -> str | None:
    """Return one line if the call or the environment is at fault, and None if fakexport itself is.

    The call is at fault where typer says so, where fakexport raises a `FakexportError`, and where the system
    denies a file. Any other error says nothing to the user: fakexport should have caught it.
    """
    if isinstance(error, _CLICK_EXCEPTION):
        return _one_line(_typer_message(error))
    if isinstance(error, FakexportError):
        return _one_line(str(error))
    if (missing := missing_package(error)) is not None:
        return missing
    if isinstance(error, OSError) and error.filename is not None:
        return _one_line(f"{error.filename}: {error.strerror}")
    if isinstance(error, FileNotFoundError) and _is_folder_gone():
        return "the working directory does not exist any more: change to another one"
    if isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM:
        return _one_line(error.strerror or str(error))
    if isinstance(error, MemoryError) or _is_library_too_large(error):
        return "out of memory"
    if isinstance(error, SystemExit):
        return f"the model's code exited: sys.exit({error.code!r})"
    return None


def _is_folder_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def internal_fault(error: BaseException, arguments: Sequence[str]) -> str:
    """Return the text of diagnostic FE001, with everything a bug report needs except the traceback."""
    return render_text(_diagnostic(error, arguments))


def _diagnostic(error: BaseException, arguments: Sequence[str]) -> Diagnostic:
    labels = []
    if (place := _place(error)) is not None:
        path, line, function = place
        labels.append(Label(Span(path, line, function=function, origin="traceback"), type(error).__name__))
    text = "".join(traceback.format_exception_only(error)).strip()
    return rule("FE001").diagnostic(
        labels=tuple(labels),
        notes=(
            text,
            f"the command was: fakexport {shlex.join(arguments)}",
            f"versions: {_versions()}",
            (
                "please report this; --debug shows the traceback, and `fakexport explain FE001` lists "
                "what to include"
            ),
        ),
    )


def _place(error: BaseException) -> tuple[str, int, str] | None:
    """Return file, line and function where an error was raised, in whichever process."""
    if isinstance(error.__cause__, RemoteTraceback):
        return error.__cause__.place
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].filename, frames[-1].lineno, frames[-1].name) if frames and frames[-1].lineno else None


def _versions() -> str:
    found = {"fakexport": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "typer"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _typer_message(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    command = "fakexport" if context is None else context.command_path
    message = str(getattr(error, "format_message", error.__str__)())
    return f"{message.rstrip('.')}; see `{command} --help`"


def _is_library_too_large(error: BaseException) -> bool:
    return isinstance(error, (ImportError, OSError)) and any(said in str(error) for said in _NO_ROOM)


def _one_line(text: str) -> str:
    return escaped(" ".join(text.split()))
