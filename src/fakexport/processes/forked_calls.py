"""Call functions in forked copies of this process; what they return comes back as values. Linux only."""

from __future__ import annotations

import gc
import io
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO, Any, Generic, NoReturn, Protocol, TextIO, TypeVar

from .parent import end_with_parent

T = TypeVar("T")
Send = Callable[[object], None]

_POLL_S, _GRACE_S = 0.1, 1.0
_LAST_LINES = 5
# User code in the forked process may replace these.
_exit, _dumps, _format_exception = os._exit, pickle.dumps, traceback.format_exception
_shown: dict[Any, Any] = {}  # What `warnings` knows of the warnings that are shown once.


@dataclass(frozen=True)
class NoAnswer:
    """How a forked process ended that returned nothing and raised nothing.

    Args:
        reason: `exit code 0`, `killed by SIGKILL`, `SystemExit: 0`.
        last_lines: The end of what it wrote to stdout and stderr.
    """

    reason: str
    last_lines: tuple[str, ...]


class ForkedStream(Protocol):
    """A replacement of `sys.stdout` that knows what takes its place in a forked process."""

    def in_fork(self, stream: TextIO) -> TextIO:
        """Return what to write to in a forked process, whose own stream is `stream`."""


class RemoteTraceback(Exception):
    """The traceback of an exception in a forked process, as its cause; its text is the traceback."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def run_forked(
    calls: Sequence[Callable[[Send], T]],
    *,
    jobs: int,
    on_message: Callable[[int, Any], None],
    guard: Callable[[], AbstractContextManager[Any]] | None = None,
    start: Callable[[], None] | None = None,
) -> list[T | NoAnswer]:
    """Call each function in a forked copy of this process, and return what they return, in their order.

    What a call does to its process (modules, caches, working directory, signal handlers, threads, exit
    handlers, files that it closes) has no effect on this process and the other calls. It reads nothing from
    stdin. What it writes to stdout and stderr appears on those of this process when it ends; its warnings are
    warnings here. Messages, output and the first exception arrive in the order of the calls, whichever ends
    first. When this function returns or raises, the processes are killed, with all that they started.

    Args:
        calls: Each takes a function that sends a value to `on_message`. Its return value is pickled.
        jobs: Number of processes at a time.
        on_message: Called here with the index of the call and what it sent.
        guard: Returns a context manager that is entered around each fork, in both processes.
        start: Called first in each forked process.
    Raises:
        BaseException: what a call raised, with the same type and text; of an exception whose class this
            process does not have, the nearest base class that it has. `SystemExit` is no answer.
    """
    waiting, ended = list(enumerate(calls)), 0
    running: dict[int, _Call[T]] = {}
    answers: list[T | NoAnswer] = []
    try:
        while ended < len(calls):
            while waiting and sum(call.is_running for call in running.values()) < jobs:
                index, function = waiting.pop(0)
                running[index] = _Call(function, guard, start)
            _receive([call for call in running.values() if call.is_running])
            while ended < len(calls) and (first := running.get(ended)) is not None:
                for kind, value in first.taken():
                    if kind == "message":
                        on_message(ended, value)
                    else:
                        warnings.warn_explicit(*value, registry=_shown)
                if first.is_running:
                    break
                ended += 1
                answers.append(first.answer())
    finally:
        for call in running.values():
            call.kill()
    return answers


def _receive(calls: Sequence[_Call[Any]]) -> None:
    """Wait until one of the calls has sent something or has ended."""
    ready = wait([call.reader for call in calls], _POLL_S)
    for call in calls:
        call.receive(is_ready=call.reader in ready)


class _Call(Generic[T]):
    """A call in a process of its own."""

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
        self._files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (closed by `kill`)
        alive, self._held = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        with ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: of a fork next to threads.
            if guard is not None:
                stack.enter_context(guard())
            self._pid = os.fork()
            if self._pid == 0:
                self.reader.close()
                os.close(self._held)
                stack.pop_all().close()
                _in_child(function, writer, alive, self._files, start)
        writer.close()
        os.close(alive)

    def receive(self, *, is_ready: bool) -> None:
        """Take what has arrived; if nothing has, look whether the process has ended.

        A process that it started may keep the pipe open.
        """
        if not is_ready and not self._has_ended(wait_s=0):
            return
        try:
            # What it sent last may have arrived just before its end.
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
        """Write its output, and return or raise what the call did."""
        written = [_written(file) for file in self._files]
        for stream, text in zip((sys.stdout, sys.stderr), written, strict=True):
            if text:
                stream.write(text)
                stream.flush()
        if self._outcome is None or self._outcome.kind == "exited":
            reason = _ending(self._status) if self._outcome is None else str(self._outcome.value)
            return NoAnswer(reason, _last_lines("".join(written)))
        if self._outcome.kind == "raised":
            raised, text = self._outcome.value
            error = raised.error()
            # Others, such as `KeyboardInterrupt` and outcomes of pytest, are no faults to search for.
            raise error from (RemoteTraceback(text) if isinstance(error, Exception) else None)
        return self._outcome.value  # type: ignore[no-any-return]

    def kill(self) -> None:
        """End the process and all that it has started, and close what is open."""
        self._end()
        for file in self._files:
            file.close()

    def _end(self) -> None:
        self.is_running = False
        if self.reader.closed:
            return
        for kill in (os.killpg, os.kill):  # It has no group of its own yet if it has just been forked.
            with suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)
        if self._status is None:
            self._status = os.waitpid(self._pid, 0)[1]
        self.reader.close()
        os.close(self._held)

    def _has_ended(self, wait_s: float) -> bool:
        until = time.monotonic() + wait_s
        while self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
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


def _written(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _last_lines(text: str) -> tuple[str, ...]:
    return tuple([line for line in text.splitlines() if line.strip()][-_LAST_LINES:])


def _ending(status: int | None) -> str:
    code = os.waitstatus_to_exitcode(status or 0)
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def _received(reader: Connection) -> tuple[str, Any]:
    found: tuple[str, Any] = _Values(io.BytesIO(reader.recv_bytes())).load()
    return found


class _Values(pickle.Unpickler):
    """Values of classes that this process knows: reading an answer imports no module of the user."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in sys.modules and module.partition(".")[0] not in ("fakexport", "torch"):
            raise pickle.UnpicklingError(f"{module}.{name} is of a module that this process has not imported")
        return super().find_class(module, name)


def _in_child(
    function: Callable[[Send], Any],
    writer: Connection,
    alive: int,
    files: Sequence[IO[bytes]],
    start: Callable[[], None] | None,
) -> NoReturn:
    """Call the function, send what becomes of it, and end this process, whatever user code has done to it."""
    try:
        known = frozenset(sys.modules)
        _prepare(alive, files)
        _answer(function, writer, known, start)
    finally:
        _exit(1)


def _prepare(alive: int, files: Sequence[IO[bytes]]) -> None:
    os.setsid()
    end_with_parent(alive)
    gc.freeze()  # What the other process made is not searched for garbage here, which would copy it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 (a descriptor is no path)
    for number, name, file in ((1, "stdout", files[0]), (2, "stderr", files[1])):
        os.dup2(file.fileno(), number)
        own = open(  # noqa: SIM115
            number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        setattr(sys, f"__{name}__", own)
        before = getattr(sys, name)
        setattr(sys, name, before.in_fork(own) if hasattr(before, "in_fork") else own)


def _answer(
    function: Callable[[Send], Any],
    writer: Connection,
    known: frozenset[str],
    start: Callable[[], None] | None,
) -> None:
    streams = sys.stdout, sys.stderr

    def send(message: object) -> None:
        writer.send_bytes(_dumps(("message", message)))

    def warn(message: Any, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
        kind = next(kind for kind in category.__mro__ if kind.__module__ in known and _is_picklable(kind))
        writer.send_bytes(_dumps(("warning", (str(message), kind, filename, lineno))))

    warnings.showwarning = warn
    try:
        if start is not None:
            start()
        answer = _dumps(("returned", function(send)))
    except SystemExit as error:
        answer = _dumps(("exited", f"SystemExit: {error}"))
    except BaseException as error:
        answer = _dumps(("raised", (_portable(error, known), "".join(_format_exception(error)))))
    for stream in streams:
        with suppress(Exception):
            stream.flush()
    writer.send_bytes(answer)
    _exit(0)


def _portable(error: BaseException, known: Collection[str]) -> _Raised:
    """Return an exception as a value for a process that has imported the modules `known`."""
    text = str(error)
    for kind in type(error).__mro__:
        if not issubclass(kind, BaseException) or kind.__module__ not in known:
            continue
        for raised in (_Raised(kind, _arguments(error), _state_of(error)), _Raised(kind, (text,), {})):
            with suppress(Exception):
                if str(pickle.loads(_dumps(raised)).error()) == text:
                    return raised
    return _Raised(RuntimeError, (text,), {})


@dataclass(frozen=True)
class _Raised:
    """An exception as a value: `__init__`, which may take anything, is not called again."""

    kind: type[BaseException]
    arguments: tuple[Any, ...]
    state: dict[str, Any]

    def error(self) -> BaseException:
        made = self.kind.__new__(self.kind, *self.arguments)
        builtin = next(base for base in self.kind.__mro__ if base.__module__ == "builtins")
        builtin.__init__(made, *self.arguments)
        vars(made).update(self.state)
        return made


def _arguments(error: BaseException) -> tuple[Any, ...]:
    reduced = error.__reduce__()
    return reduced[1] if isinstance(reduced, tuple) and isinstance(reduced[1], tuple) else error.args


def _state_of(error: BaseException) -> dict[str, Any]:
    """Return the attributes that can be pickled."""
    found = {}
    for name, value in vars(error).items():
        if _is_picklable(value):
            found[name] = value
    return found


def _is_picklable(value: object) -> bool:
    try:
        _dumps(value)
    except Exception:  # It depends on the value what is raised.
        return False
    return True
