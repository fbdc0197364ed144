"""Entry point: run a command line and return its exit code without raising."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from types import FrameType
from typing import Any

import typer

from fakexport.cli.app import app
from fakexport.cli.color import automatic_color
from fakexport.cli.options import DEBUG
from fakexport.cli.streams import flush_output, standard_streams, write_error_line
from fakexport.cli.time_limit import EXIT_CODE as TIMED_OUT
from fakexport.cli.time_limit import TimeLimitExceeded
from fakexport.files import inputs_protected
from fakexport.files.processes import OWN_THREAD

_USAGE, _INTERRUPTED, _READER_GONE, _TERMINATED = 2, 130, 141, 143


class _Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, so that unfinished work is cleaned up in the same way as after Ctrl-C."""


_AGAIN_S = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `fakexport` without raising an exception. User errors are printed as one line on stderr.

    Args:
        arguments: The command line without the program's name. Default: the command line of this process.
    Returns:
        Exit code: 0 clean, 1 findings, 2 bad usage or environment or an internal error, 124 stopped by
        `--timeout`, 130 interrupted, 141 if the reader of stdout closed the pipe, 143 terminated.
    """
    if arguments is None:
        _collect_rarely()
    given = list(sys.argv[1:] if arguments is None else arguments)
    with standard_streams(), automatic_color():
        return _exit_code(given)


def _collect_rarely() -> None:
    """Run Python's cyclic garbage collector for every 50,000 new objects instead of every 700.

    Importing torch creates a million permanent objects, and garbage collection took a sixth of the time of a
    short command. Do not call this function if a program calls `main`, because it affects the whole process.
    """
    gc.set_threshold(50_000, 20, 10)


def _exit_code(given: list[str]) -> int:
    stops = _Stops()
    try:
        with stops, inputs_protected():
            code = _run(given)
        flush_output()
    except BrokenPipeError:
        return _READER_GONE
    except _Terminated:
        write_error_line("error: terminated")
        return _TERMINATED
    except TimeLimitExceeded as error:
        write_error_line(f"error: {error}")
        return TIMED_OUT
    except KeyboardInterrupt:
        write_error_line("error: interrupted")
        return _INTERRUPTED
    except (Exception, SystemExit) as error:
        if stops.is_interrupted:  # The import of a native library turns the exception into a different one.
            write_error_line("error: interrupted")
            return _INTERRUPTED
        # Search the raw arguments for --debug, so that it also applies to parsing errors.
        try:
            _show_fault(error, given, is_debug=DEBUG in given)
        except MemoryError:  # Importing the modules that format the error needs memory too.
            write_error_line("error: out of memory")
        with suppress(OSError):
            flush_output()
        return _USAGE
    return code


class _Stops:
    """Raise `_Terminated` on SIGTERM and KeyboardInterrupt on SIGINT within the block.

    Native code and `__del__` methods swallow exceptions. If the block does not end soon after a SIGINT, it is
    therefore raised again. A second SIGTERM ends the process at once. This has no effect outside the main
    thread, or on signals that are already handled or ignored.
    """

    def __init__(self) -> None:
        self.is_interrupted = False
        self._has_ended = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        handlers = {signal.SIGTERM: self._terminate, signal.SIGINT: self._interrupt}
        for number, handler in handlers.items():
            if signal.getsignal(number) is usual[number]:
                self._before[number] = signal.signal(number, handler)

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise _Terminated

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self.is_interrupted:
            self.is_interrupted = True
            if hasattr(signal, "pthread_kill"):  # Windows lacks it.
                threading.Thread(target=self._repeat, name=f"{OWN_THREAD}interrupt", daemon=True).start()
        raise KeyboardInterrupt

    def _repeat(self) -> None:
        while not self._has_ended.wait(_AGAIN_S):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _run(arguments: list[str]) -> int:
    """Run a command as typer does in `app()`, but without its error handling."""
    command = _command()
    try:
        with command.make_context("fakexport", arguments, obj=tuple(arguments)) as context:
            command.invoke(context)
    except typer.Exit as exit_:
        return exit_.exit_code
    return 0


@cache
def _command() -> Any:
    """Return the click command that typer builds from the commands' signatures, once per process."""
    return typer.main.get_command(app)


def _show_fault(error: BaseException, arguments: Sequence[str], *, is_debug: bool) -> None:
    from fakexport.cli.faults import internal_fault, usage_fault

    if is_debug:
        write_error_line("".join(traceback.format_exception(error)).rstrip())
    message = usage_fault(error)
    write_error_line(internal_fault(error, arguments) if message is None else f"error: {message}")
