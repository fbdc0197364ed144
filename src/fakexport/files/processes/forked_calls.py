"""Call functions in forked copies of this process, and return their results. Linux only."""

from __future__ import annotations

import builtins
import gc
import io
import os
import pickle
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Generic, NoReturn, TypeVar

from fakexport.error import missing_in_torch

from .forked_output import ForkedOutput, flush_streams, own_flush
from .parent import end_with_parent
from .temporary_folder import TemporaryFolder, use_temporary_folder

T = TypeVar("T")
Send = Callable[[object], None]

IN_PROCESS = "FAKEXPORT_IN_PROCESS"
"""Environment variable: if set, targets run in this process, for a debugger or to measure coverage."""

_POLL_S, _GRACE_S = 0.1, 1.0
_LAST_LINES = 5
# Keep references, because user code in the forked process may replace the originals.
_exit, _dumps, _format_exception = os._exit, pickle.dumps, traceback.format_exception


@dataclass(frozen=True)
class NoAnswer:
    """The result of a call whose process neither returned a value nor raised an exception.

    `reason` tells how the process ended, such as `exit code 0` or `killed by SIGKILL`. `last_lines` are the
    last lines of its output.
    """

    reason: str
    last_lines: tuple[str, ...]


class RemoteTraceback(Exception):
    """The traceback of an exception from a forked process. It is the `__cause__` of the exception."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"

    @property
    def place(self) -> tuple[str, int, str] | None:
        """File, line and function that raised the exception, or None if the traceback has no such line."""
        found = re.findall(r'^  File "(.+)", line (\d+), in (.+)$', self.args[0], re.MULTILINE)
        return (found[-1][0], int(found[-1][1]), found[-1][2]) if found else None


def run_forked(
    calls: Sequence[Callable[[Send], T]],
    *,
    jobs: int,
    on_message: Callable[[int, Any], None],
    guard: Callable[[], AbstractContextManager[Any]] | None = None,
    start: Callable[[], None] | None = None,
    meanwhile: Callable[[], bool] | None = None,
) -> list[T | NoAnswer]:
    """Call each function in a forked copy of this process, and return the results in order.

    Changes that a call makes to its process (modules, caches, working directory, signal handlers, threads,
    exit handlers, closed files) do not affect this process or other calls. The stdin of a call is empty. When
    a call ends, its output is written to this process's stdout and stderr. Its warnings are also issued in
    this process. Messages, output and the first exception are handled in the order of the calls, regardless
    of which call ends first. When this function returns or raises, the forked processes and their children
    are killed, and the temporary files that they created are deleted.

    Args:
        calls: The functions. Each takes a function that sends a value to `on_message`. Return values are
            pickled.
        jobs: Maximum number of processes at a time.
        on_message: Called in this process with the index of a call and a value that the call sent.
        guard: Returns a context manager that surrounds each fork. Both processes exit it.
        start: Called in each forked process before the function.
        meanwhile: Called here when the first calls run. If it returns False, the calls are killed.

    Raises:
        BaseException: The exception that a call raised, with the same type and text. If this process has not
            imported the exception's class, the nearest imported base class is used. For `SystemExit`, the
            result is a `NoAnswer`.
    """
    waiting, ended = list(enumerate(calls)), 0
    running: dict[int, _Call[T]] = {}
    answers: list[T | NoAnswer] = []
    shown: dict[object, int] = {}  # A warning that several calls issue is shown once.
    try:
        while ended < len(calls):
            while waiting and sum(call.is_running for call in running.values()) < jobs:
                index, function = waiting.pop(0)
                running[index] = _Call(function, guard, start)
            if meanwhile is not None and not meanwhile():
                return []
            meanwhile = None
            _receive([call for call in running.values() if call.is_running])
            while ended < len(calls) and (first := running.get(ended)) is not None:
                for kind, value in first.taken():
                    if kind == "message":
                        on_message(ended, value)
                    elif shown.setdefault(value, ended) == ended:
                        _warn(*value)
                if first.is_running:
                    break
                ended += 1
                answers.append(first.answer())
    finally:
        for call in running.values():
            call.kill()
    return answers


def _warn(text: str, category: type[Warning], filename: str, lineno: int) -> None:
    """Issue a warning that has already passed the filters of the forked process."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn_explicit(text, category, filename, lineno)


def _receive(calls: Sequence[_Call[Any]]) -> None:
    """Wait a short time until one of the calls has sent something or ended."""
    ready = wait([call.reader for call in calls], _POLL_S)
    for call in calls:
        call.receive(is_ready=call.reader in ready)


class _Call(Generic[T]):
    """A call in its own forked process."""

    def __init__(
        self,
        function: Callable[[Send], T],
        guard: Callable[[], AbstractContextManager[Any]] | None,
        start: Callable[[], None] | None,
    ) -> None:
        self._messages: list[tuple[str, Any]] = []
        self._outcome: _Outcome | None = None
        self._status: int | None = None
        self.is_running = True
        self.reader, writer = Pipe(duplex=False)
        self._output = ForkedOutput()
        self._folder = TemporaryFolder()
        alive, self._held = os.pipe()
        flush_streams()
        with ExitStack() as stack, warnings.catch_warnings():
            # Python 3.12 warns about forks while threads are running.
            warnings.simplefilter("ignore", DeprecationWarning)
            if guard is not None:
                stack.enter_context(guard())
            self._pid = os.fork()
            if self._pid == 0:
                self.reader.close()
                os.close(self._held)
                stack.pop_all().close()
                use_temporary_folder(self._folder.path)
                _in_child(function, writer, alive, self._output, start)
        writer.close()
        os.close(alive)

    def receive(self, *, is_ready: bool) -> None:
        """Read a message if there is one; otherwise check whether the process has ended.

        The pipe may stay open after the process has ended, if a child process still has it open.
        """
        if not is_ready and not self._has_ended(wait_s=0):
            return
        try:
            # The last message may have arrived just before the process ended.
            kind, value = _received(self.reader) if is_ready or self.reader.poll() else ("ended", None)
        except (EOFError, OSError):
            kind, value = "ended", None
        if kind == "ended":
            self._has_ended(wait_s=_GRACE_S)
            self._end()
            return
        if kind in ("message", "warning"):
            self._messages.append((kind, value))
        else:
            self._outcome = _Outcome(kind, value)
            self._end()

    def taken(self) -> Iterator[tuple[str, Any]]:
        """Return the messages and warnings that have arrived since the last call."""
        found, self._messages = self._messages, []
        return iter(found)

    def answer(self) -> T | NoAnswer:
        """Write the output of the call, and return its result or raise its exception."""
        written = self._output.replay()
        if self._outcome is None or self._outcome.kind == "exited":
            reason = _ending(self._status) if self._outcome is None else str(self._outcome.value)
            lines = [line for line in written.splitlines() if line.strip()]
            return NoAnswer(reason, tuple(lines[-_LAST_LINES:]))
        if self._outcome.kind == "raised":
            raised, text = self._outcome.value
            error = raised.error()
            # Other exceptions, such as `KeyboardInterrupt` and pytest outcomes, need no remote traceback.
            raise error from (RemoteTraceback(text) if isinstance(error, Exception) else None)
        return self._outcome.value  # type: ignore[no-any-return]

    def kill(self) -> None:
        """Kill the process and all processes that it started, and close the open files."""
        self._end()
        self._output.close()
        self._folder.close()

    def _end(self) -> None:
        self.is_running = False
        if self.reader.closed:
            return
        # A process that was just forked may not have its own process group yet.
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)
        if self._status is None:
            self._status = _waited(self._pid, 0)[1]
        self.reader.close()
        os.close(self._held)

    def _has_ended(self, wait_s: float) -> bool:
        until = time.monotonic() + wait_s
        while self._status is None:
            pid, status = _waited(self._pid, os.WNOHANG)
            if pid:
                self._status = status
            elif time.monotonic() >= until:
                return False
            else:
                time.sleep(0.001)
        return True


@dataclass(frozen=True)
class _Outcome:
    kind: str
    value: Any


def _waited(pid: int, options: int) -> tuple[int, int]:
    try:
        return os.waitpid(pid, options)
    except ChildProcessError:  # SIGCHLD is ignored, or different code waited for the process.
        return pid, 0


def _ending(status: int | None) -> str:
    code = os.waitstatus_to_exitcode(status or 0)
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def _received(reader: Connection) -> tuple[str, Any]:
    found: tuple[str, Any] = _Values(io.BytesIO(reader.recv_bytes())).load()
    return found


class _Values(pickle.Unpickler):
    """Unpickles values without importing user modules. Only classes from imported modules are accepted."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in sys.modules and module.partition(".")[0] not in ("fakexport", "torch"):
            raise pickle.UnpicklingError(
                f"{module}.{name} belongs to a module that this process has not imported"
            )
        return super().find_class(module, name)


def _in_child(
    function: Callable[[Send], Any],
    writer: Connection,
    alive: int,
    output: ForkedOutput,
    start: Callable[[], None] | None,
) -> NoReturn:
    """Call the function, send its result or exception, and end the process."""
    try:
        known = frozenset(sys.modules)
        _prepare(alive, output)
        _answer(function, writer, known, start)
    finally:
        _exit(1)


def _prepare(alive: int, output: ForkedOutput) -> None:
    os.setsid()
    end_with_parent(alive)
    # Exclude inherited objects from garbage collection: visiting them would copy their memory.
    gc.freeze()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    output.take_over()


def _answer(
    function: Callable[[Send], Any],
    writer: Connection,
    known: frozenset[str],
    start: Callable[[], None] | None,
) -> None:
    flush = own_flush()

    def send(message: object) -> None:
        writer.send_bytes(_dumps(("message", message)))

    def warn(message: Any, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
        kind = next(kind for kind in category.__mro__ if kind.__module__ in known and _is_picklable(kind))
        writer.send_bytes(_dumps(("warning", (str(message), kind, filename, lineno))))

    setattr(warnings, "showwarning", warn)  # noqa: B010 (mypy would reject an assignment)
    try:
        if start is not None:
            start()
        answer = _dumps(("returned", function(send)))
    except SystemExit as error:
        answer = _dumps(("exited", f"SystemExit: {error}"))
    except BaseException as error:
        answer = _dumps(
            (
                "raised",
                (_portable(missing_in_torch(error) or error, known), "".join(_format_exception(error))),
            )
        )
    flush()
    writer.send_bytes(answer)
    _exit(0)


def _portable(error: BaseException, known: Collection[str]) -> _Raised:
    """Convert an exception to a value that a process with only the modules `known` can unpickle."""
    text = str(error)
    for kind in type(error).__mro__:
        if not issubclass(kind, BaseException) or kind.__module__ not in known:
            continue
        name = type(error).__qualname__
        for raised in (
            _Raised(kind, _arguments(error), _state_of(error), name),
            _Raised(kind, (text,), {}, name),
        ):
            with suppress(Exception):
                if str(pickle.loads(_dumps(raised)).error()) == text:
                    return raised
    return _Raised(RuntimeError, (text,), {}, "")


@dataclass(frozen=True)
class _Raised:
    """An exception in a form that can be pickled.

    It is recreated without calling its class's own `__init__`, which may have any parameters. The classes of
    pytest outcomes claim to be defined in `builtins`, so a class is looked up by name among the subclasses.
    """

    kind: type[BaseException]
    arguments: tuple[Any, ...]
    state: dict[str, Any]
    name: str

    def error(self) -> BaseException:
        kind = next(
            (each for each in self.kind.__subclasses__() if each.__qualname__ == self.name), self.kind
        )
        made = kind.__new__(kind, *self.arguments)
        is_builtin = (base for base in kind.__mro__ if vars(builtins).get(base.__name__) is base)
        next(is_builtin).__init__(made, *self.arguments)
        vars(made).update(self.state)
        return made


def _arguments(error: BaseException) -> tuple[Any, ...]:
    reduced = error.__reduce__()
    return reduced[1] if isinstance(reduced, tuple) and isinstance(reduced[1], tuple) else error.args


def _state_of(error: BaseException) -> dict[str, Any]:
    """Return the exception's attributes that can be pickled."""
    found = {}
    for name, value in vars(error).items():
        if _is_picklable(value):
            found[name] = value
    return found


def _is_picklable(value: object) -> bool:
    try:
        _dumps(value)
    except Exception:  # Depending on the value, pickling can raise any exception.
        return False
    return True
