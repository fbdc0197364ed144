"""The base of every error that fakexport raises on purpose."""

from __future__ import annotations


class FakexportError(Exception):
    """The base of every error that fakexport raises: its text is one line that says what to change.

    Each also derives from the builtin error that fits, such as `ValueError`, `TypeError` or `RuntimeError`.
    Errors of the operating system (`OSError`), of the model's own code and of torch are raised unchanged.
    Any other error that leaves fakexport is a bug of fakexport, which the command line reports as FE001.

    Example:
        >>> try:
        ...     emulate("H10").__enter__()
        ... except FakexportError as error:
        ...     print(str(error).partition(":")[0])
        unknown device 'H10'
    """


class InvalidValue(FakexportError, ValueError):
    """An argument, or something that it names or holds, is not one that fakexport takes."""


class InvalidType(FakexportError, TypeError):
    """An argument, or something that it returns, is not of a type that fakexport takes."""


def first_line(error: object) -> str:
    """Return the first line of an exception's text; empty without a text."""
    return next(iter(str(error).strip().splitlines()), "")


def type_and_line(error: object) -> str:
    """Return `ValueError: the first line`, or the type alone without a text."""
    return f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")
