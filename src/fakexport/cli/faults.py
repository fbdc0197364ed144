"""Format errors for stderr: one line for bad usage, diagnostic FE001 for an internal error."""

from __future__ import annotations

import errno
import platform
import shlex
import traceback
from collections.abc import Sequence
from pathlib import Path

import typer

from fakexport._version import __version__
from fakexport.error import FakexportError, missing_in_torch
from fakexport.files import escaped
from fakexport.files.processes import RemoteTraceback
from fakexport.models import installed_version
from fakexport.report import missing_package
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Label, Span, render_text

# Typer vendors click since 0.22, and exposes `ClickException` only as a base class.
_CLICK_EXCEPTION = typer.BadParameter.__mro__[2]
# System errors that are not bugs, even if they name no file.
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
# Messages of the dynamic loader if memory is too small to load a library. Python raises them as ImportError.
_NO_ROOM = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")


def usage_fault(error: BaseException) -> str | None:
    """Return a one-line message for an error of the user or the environment, or None for a bug of fakexport.

    Errors of the user or the environment are: errors of typer, `FakexportError`, missing packages, system
    errors, too little memory, and `sys.exit` in the model's code. Any other error is a bug.
    """
    if isinstance(error, _CLICK_EXCEPTION):
        return _one_line(_typer_message(error))
    if isinstance(error, FakexportError):
        return _one_line(str(error))
    if (missing := missing_package(error)) is not None:
        return missing
    if (lacking := missing_in_torch(error)) is not None:
        return _one_line(str(lacking))
    if isinstance(error, OSError) and error.filename is not None:
        return _one_line(f"{error.filename}: {error.strerror}")
    if isinstance(error, FileNotFoundError) and _is_folder_gone():
        return "the working directory does not exist any more: change to a folder that exists"
    if isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM:
        return _one_line(error.strerror or str(error))
    is_of_library = isinstance(error, (ImportError, OSError)) and any(said in str(error) for said in _NO_ROOM)
    if isinstance(error, MemoryError) or is_of_library:
        return "out of memory"
    if isinstance(error, SystemExit):
        return f"the model's code called sys.exit({error.code!r}): remove this call"
    return None


def _is_folder_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def internal_fault(error: BaseException, arguments: Sequence[str]) -> str:
    """Return the text of diagnostic FE001, with all facts for a bug report except the traceback."""
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
    """Return the file, line and function that raised an error in this process or in a child process."""
    if isinstance(error.__cause__, RemoteTraceback):
        return error.__cause__.place
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].filename, frames[-1].lineno, frames[-1].name) if frames and frames[-1].lineno else None


def _versions() -> str:
    found = {"fakexport": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "typer"):
        if (version := installed_version(package)) is not None:
            found[package] = version
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _typer_message(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    command = "fakexport" if context is None else context.command_path
    message = str(getattr(error, "format_message", error.__str__)())
    return f"{message.rstrip('.')}; see `{command} --help`"


def _one_line(text: str) -> str:
    return escaped(" ".join(text.split()))
