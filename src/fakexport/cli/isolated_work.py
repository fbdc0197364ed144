"""The part of a command that can run code of the user, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from fakexport.cli.options import load_libraries
from fakexport.error import FakexportError
from fakexport.isolation import forked, why_shared
from fakexport.processes import NoAnswer

T = TypeVar("T")
Show = Callable[[Any], None]


class NoAnswerError(FakexportError, RuntimeError):
    """The process that ran code of the user ended by itself. One line."""


def isolated(
    work: Callable[[Show | None], T],
    libraries: Iterable[str] | None,
    *,
    runs_code: bool = True,
    on_progress: Show | None = None,
) -> T:
    """Load libraries of operators and return what `work` does, from a forked process.

    The process ends with its answer, whatever the code has left there: threads, handlers, a working
    directory, descriptors. Its output then appears on stderr. If no user code can run, nothing is forked.

    Args:
        work: Takes what shows progress, `on_progress` from the other process. Returns a value that can be
            pickled, of modules that do not import torch: this process has no other use for it.
        libraries: As `--library` names them.
        runs_code: Whether `work` itself can run code, of a model or of a trusted file.
        on_progress: Shows a value of `work`, here.
    Raises:
        NoAnswerError: the process ended without an answer.
        BaseException: what `work` raised.
    """

    def loaded_and_done(show: Show | None) -> T:
        load_libraries(libraries)
        return work(show)

    if not (runs_code or libraries) or why_shared() is not None:
        return loaded_and_done(on_progress)
    shown = on_progress or (lambda message: None)
    (found,) = forked(
        [lambda send: loaded_and_done(None if on_progress is None else send)],
        lambda _, message: shown(message),
    )
    if isinstance(found, NoAnswer):
        raise NoAnswerError(f"the model's code ended its process: {found.reason}")
    return found
