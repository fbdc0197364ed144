"""Run the part of a command that may execute user code in a separate process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from fakexport.checking.isolation import forked, why_shared
from fakexport.cli.options import Debug, Libraries, NoProgress, load_libraries
from fakexport.cli.progress_display import lines_on_stderr
from fakexport.cli.quiet import quiet
from fakexport.error import FakexportError
from fakexport.files.processes import NoAnswer, Send

T = TypeVar("T")
Show = Callable[[Any], None]


class NoAnswerError(FakexportError, RuntimeError):
    """The process that ran user code exited without a result. The message is one line."""


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """Options of a command that may run code from a model, a file or an operator library."""

    libraries: Libraries = None
    no_progress: NoProgress = False
    debug: Debug = False

    def run(
        self,
        work: Callable[..., T],
        step: str = "",
        *,
        runs_code: bool = True,
        on_progress: Show | None = None,
    ) -> T:
        """Return the result of `isolated`, without the output of libraries.

        Args:
            step: What `work` does. A terminal shows it with the elapsed time, unless it is "".
        """
        with (
            lines_on_stderr(is_shown=bool(step) and not self.no_progress) as show,
            quiet(is_debug=self.debug),
        ):
            if show is not None:
                show(step)
            return isolated(work, self.libraries, runs_code=runs_code, on_progress=on_progress)


def isolated(
    work: Callable[..., T],
    libraries: Iterable[str] | None,
    *,
    runs_code: bool = True,
    on_progress: Show | None = None,
) -> T:
    """Load operator libraries and call `work` in a forked process. Return the result of `work`.

    Threads, signal handlers, open files and a changed working directory of user code end with the forked
    process. Its output appears on stderr. If no user code can run, or forking is disabled, `work` runs in
    this process.

    Args:
        work: The function to call. With `on_progress`, its argument is a function that reports progress. The
            result must be picklable. Unpickling must not import torch, which this process does not need.
        libraries: Values of `--library`.
        runs_code: Whether `work` itself may run code of a model or of a trusted file.
        on_progress: Receives the reported progress in this process.
    Raises:
        NoAnswerError: the process exited without a result.
        BaseException: the exception that `work` raised.
    """

    def loaded_and_done(show: Show | None) -> T:
        load_libraries(libraries)
        return work() if show is None else work(show)

    def done(send: Send) -> T:
        return loaded_and_done(None if on_progress is None else send)

    if not (runs_code or libraries) or why_shared() is not None:
        return loaded_and_done(on_progress)
    (found,) = forked([done], lambda _, message: on_progress(message) if on_progress else None)
    if isinstance(found, NoAnswer):
        raise NoAnswerError(f"the process that runs the model's code ended without a result: {found.reason}")
    return found
