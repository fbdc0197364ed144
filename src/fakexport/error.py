"""The errors that every package may raise: the base class, and the error for a name that torch lacks."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

_HERE = Path(__file__).with_name("_torch")
_SPEED = _HERE / "speed"
_PATCHING = str(_HERE / "patching.py")
# These files look up a name on behalf of a different file, which is the one to report.
_FILES_ON_BEHALF = ("torch/_ops.py", "contextlib.py", _PATCHING)
_FUNCTIONS_ON_BEHALF = {"__getattr__", "__getitem__"}
_PRIVATE = re.compile(r"(?<!\w)_[A-Za-z]\w+")


class FakexportError(Exception):
    """The base class of every error that fakexport raises. The message is one line that says what to change.

    Each subclass also derives from a matching builtin error, such as `ValueError`, `TypeError` or
    `RuntimeError`. Errors of the operating system (`OSError`), of the model's own code and of torch are
    raised unchanged. Any other error that fakexport raises is a bug in fakexport, which the command line
    reports as FE001.

    Example:
        >>> try:
        ...     emulate("H10").__enter__()
        ... except FakexportError as error:
        ...     print(str(error).partition(":")[0])
        unknown device 'H10'
    """


class InvalidValue(FakexportError, ValueError):
    """An argument, or something that it names or contains, has a value that fakexport does not accept."""


class InvalidType(FakexportError, TypeError):
    """An argument, or something that it returns, has a type that fakexport does not accept."""


def first_line(error: object) -> str:
    """Return the first line of an exception's message, or "" if the message is empty."""
    return next(iter(str(error).strip().splitlines()), "")


def type_and_line(error: object) -> str:
    """Return the type and the first line, such as `ValueError: message`; without a message, only the type."""
    return f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")


class MissingInTorch(FakexportError, RuntimeError):
    """This version of torch lacks a private name that fakexport needs."""


def missing_in_torch(error: BaseException) -> MissingInTorch | None:
    """Return a one-line error if a private name of torch is missing, or None if `error` has another cause."""
    if isinstance(error, MissingInTorch):
        return error
    if (found := _found(error)) is None:
        return None
    from importlib.metadata import version  # not needed for `--help`

    what, place = found
    made = MissingInTorch(
        f"torch {version('torch')} does not have the private API that fakexport {version('fakexport')} "
        f"needs: {str(what).partition(' (')[0]} ({place.name}); install a torch version that docs/support.md "
        "lists"
    )
    made.__cause__ = what
    return made


def raise_missing(error: BaseException) -> None:
    """Raise `missing_in_torch(error)`, if there is one."""
    if (found := missing_in_torch(error)) is not None:
        raise found from found.__cause__


def is_missing_for_speed(error: BaseException) -> bool:
    """Return whether the missing private name of torch is one that fakexport uses only to save time."""
    found = _found(error)
    return found is not None and found[1].is_relative_to(_SPEED)


def _found(error: BaseException) -> tuple[BaseException, Path] | None:
    """Return the error about the missing name (maybe a cause of `error`) and the file that uses the name."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        if isinstance(current, (AttributeError, ImportError)) and _PRIVATE.search(str(current)):
            place = _innermost(current.__traceback__)
            if place.is_relative_to(_HERE):
                return current, place
        current = current.__cause__ or current.__context__
    return None


def _innermost(trace: TracebackType | None) -> Path:
    found = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        path = code.co_filename
        is_on_behalf = code.co_name in _FUNCTIONS_ON_BEHALF or path.endswith(_FILES_ON_BEHALF)
        if path == _PATCHING and not found.startswith(str(_HERE)):
            is_on_behalf = False
        if not is_on_behalf:
            found = path
        trace = trace.tb_next
    return Path(found)
