"""Each target in a process of its own, forked before the model's file is imported."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch

from fakexport._libraries import import_library, library_of
from fakexport._torch.tracing_lock import no_trace_running
from fakexport.checking.answers import Answer, Wanted, answer_for, import_for
from fakexport.checking.check_call import CheckCall, Request, versions
from fakexport.checking.targets import Target
from fakexport.devices import peak_bytes
from fakexport.diagnose import diagnose_process_ended
from fakexport.error import InvalidValue
from fakexport.files import inputs_read, remember_inputs
from fakexport.hub import record_transfer, transfers_recorded
from fakexport.processes import IN_PROCESS, NoAnswer, Send, run_forked, warn_of_shared_process
from fakexport.report import (
    BlockCount,
    Progress,
    SavedPrograms,
    Stage,
    Step,
    TargetSpec,
    Timings,
    Verdict,
    archive_of,
)

_SEND_S = 0.05
_LOCKING = ("fakexport", "importlib", "torch")  # Their code holds locks, which a fork would copy.
_lock = threading.RLock()  # Checks of several threads take turns.
_answered: list[object] = []  # Sources that were checked in this process.
T = TypeVar("T")

_STAGES: dict[str, Stage] = {
    "build": "build",
    "trace": "capture",
    "explore": "capture",
    "analyse": "analyse",
}


class ShownProgress:
    """Shows what the processes of the targets send.

    Args:
        names: Names of the targets.
        on_progress: As for `check`.
    """

    def __init__(self, names: Sequence[str], on_progress: Callable[[Progress], None] | None) -> None:
        self._names, self._on_progress = names, on_progress
        self._blocks = BlockCount()
        self._stages: dict[int, Stage] = {}

    def receive(self, index: int, message: tuple[str, Any]) -> None:
        """Take a message of the process of a target."""
        kind, value = message
        if kind == "step":
            step, finding, total = value
            self._stages[index] = _STAGES[step]
            self._blocks = BlockCount(total=total or 0)
            self._show(index, step, finding, None if total is None else self._blocks)
        elif kind == "done":
            self._blocks.done = value
        elif kind == "inputs":
            remember_inputs(value)
        else:
            for name, nbytes in value.items():
                record_transfer(name, nbytes)

    def compare(self) -> None:
        """Show that the targets are compared now."""
        self._show(len(self._names) - 1, "compare", "", None)

    def failed(self, index: int, ended: NoAnswer, spec: TargetSpec, source: str) -> Answer:
        """Return the answer for a target whose process ended without one."""
        peak = peak_bytes()
        verdict = Verdict(
            target=spec,
            is_exportable=False,
            failed_stage=self._stages.get(index, "build"),
            summary=None,
            transfers=(),
            timings=Timings(0.0, 0.0, 0.0, peak, 0),
        )
        found = diagnose_process_ended(ended.reason, ended.last_lines, target=spec.name)
        return Answer(source, verdict, (found,), versions())

    def _show(self, index: int, step: Step, finding: str, blocks: BlockCount | None) -> None:
        if self._on_progress is not None:
            name = "" if step == "compare" else self._names[index]
            self._on_progress(Progress(index + 1, len(self._names), name, step, finding, blocks))


def is_isolated() -> bool:
    """Return whether each target has a process of its own."""
    return _why_shared() is None


def answers(
    call: CheckCall, targets: Sequence[Target], wanted: Wanted, shown: ShownProgress
) -> Sequence[Answer | NoAnswer]:
    """Return an answer for each target, in their order.

    Raises:
        ValueError, TypeError: bad usage, as for `check`.
    """
    with _lock:
        return _answers(call, targets, wanted, shown)


def _answers(
    call: CheckCall, targets: Sequence[Target], wanted: Wanted, shown: ShownProgress
) -> Sequence[Answer | NoAnswer]:
    """Return an answer for each target, in their order.

    The source of a library is read once, in a process that is then forked for each target: reading it runs no
    code of the user and asks nothing of a device.

    Raises:
        ValueError, TypeError: bad usage, as for `check`.
    """
    indices = range(len(targets))
    if (shared := _why_shared()) is not None:
        if len(targets) > 1 or (_answered and not os.environ.get(IN_PROCESS)):
            warn_of_shared_process(shared, stacklevel=5)
        _answered.append(call.source)
        return [_answer(call, index, wanted, partial(shown.receive, index)) for index in indices]
    import_for(wanted)
    source = call.source
    if len(targets) == 1 or call.prepare or not (isinstance(source, str) and library_of(source)):
        return _forked([partial(_answer, call, index, wanted) for index in indices], shown.receive)

    def of_library(send: Send) -> Sequence[Answer | NoAnswer]:
        import_library(source)
        with _reads_sent(lambda message: send((0, message))):
            request = call.read()
        calls = [partial(_answer, request, index, wanted) for index in indices]
        return _forked(calls, lambda index, message: send((index, message)))

    (found,) = _forked([of_library], lambda _, sent: shown.receive(*sent))
    return [found] * len(targets) if isinstance(found, NoAnswer) else found


def bundled(saved: Mapping[str, SavedPrograms], prepare: Callable[[], None] | None) -> bytes:
    """Return a bundle of saved programs by name."""

    def made(send: Send) -> bytes:
        root = Path.cwd()
        if prepare is not None:
            prepare()
        return archive_of({name: each.program for name, each in saved.items()}, root=root)

    if _why_shared() is not None:
        return made(lambda message: None)
    (found,) = _forked([made], lambda index, message: None)
    if isinstance(found, NoAnswer):
        raise InvalidValue(f"the process that writes the bundle ended with {found.reason}")
    return found


def _answer(asked: CheckCall | Request, index: int, wanted: Wanted, send: Send) -> Answer:
    root = Path.cwd()  # Before the model's file can change it.
    with _reads_sent(send):
        request = asked.read() if isinstance(asked, CheckCall) else asked
        return answer_for(request, index, wanted, _Announcer(send), root=root)


@contextmanager
def _reads_sent(send: Send) -> Iterator[None]:
    """Send what is transferred from the hub in the block, and which files were opened."""
    with transfers_recorded() as found:
        try:
            yield
        finally:
            if found:
                send(("transfers", found))
            if inputs := inputs_read():
                send(("inputs", inputs))


class _Announcer:
    """Sends what is done now."""

    def __init__(self, send: Send) -> None:
        self._send, self._sent_s, self._unsent = send, 0.0, 0

    def step(self, step: Step, finding: str = "", blocks: int | None = None) -> None:
        if self._unsent:
            self._send(("done", self._unsent))
            self._unsent = 0
        self._send(("step", (step, finding, blocks)))

    def done(self, blocks: int) -> None:
        self._unsent = blocks
        if time.monotonic() - self._sent_s > _SEND_S:
            self._sent_s, self._unsent = time.monotonic(), 0
            self._send(("done", blocks))


def _forked(
    calls: Sequence[Callable[[Send], T]], on_message: Callable[[int, Any], None]
) -> list[T | NoAnswer]:
    return run_forked(
        calls,
        jobs=len(os.sched_getaffinity(0)),
        on_message=on_message,
        guard=no_trace_running,
        start=_one_thread if _has_native_threads() else None,
    )


def _one_thread() -> None:
    """A pool of native threads is not copied by a fork, and work that is given to it would never end."""
    torch.set_num_threads(1)


def _has_native_threads() -> bool:
    return len([*Path("/proc/self/task").iterdir()]) > threading.active_count()


def _why_shared() -> str | None:
    """Return why this process cannot be forked for each target, as a clause; None if it can."""
    if os.environ.get(IN_PROCESS):
        return f"{IN_PROCESS} is set"
    if sys.platform != "linux":
        return "only Linux can fork a process that has loaded torch"
    for name, accelerator in (("CUDA", torch.cuda), ("XPU", torch.xpu)):
        if accelerator.is_initialized():
            return f"{name} is initialized here, and does not work in a fork"
    busy = _busy_thread()
    return None if busy is None else f"the thread {busy} runs fakexport or torch, or imports a module"


def _busy_thread() -> str | None:
    """Return the name of another thread that may hold a lock which a fork would copy."""
    own, names = threading.get_ident(), {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        is_shown = names.get(ident) == "fakexport-progress"  # It writes to a stream that a fork replaces.
        found: FrameType | None = None if ident == own or is_shown else frame
        while found is not None:
            if str(found.f_globals.get("__name__")).partition(".")[0] in _LOCKING:
                return names.get(ident, str(ident))
            found = found.f_back
    return None
