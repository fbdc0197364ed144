"""Each target in a process of its own, forked before the model's file is imported."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fakexport._libraries import import_library, library_of
from fakexport.checking.answers import Answer, Wanted, answer_for, import_for
from fakexport.checking.check_call import CheckCall, Request, versions
from fakexport.checking.targets import Target
from fakexport.devices import peak_bytes
from fakexport.diagnose import diagnose_process_ended
from fakexport.error import InvalidValue
from fakexport.isolation import forked, why_shared
from fakexport.processes import IN_PROCESS, NoAnswer, Send, warn_of_shared_process
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
_lock = threading.RLock()  # Checks of several threads take turns.
_answered: list[object] = []  # Sources that were checked in this process.

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
        else:
            self._blocks.done = value

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
    if (shared := why_shared()) is not None:
        if len(targets) > 1 or (_answered and not os.environ.get(IN_PROCESS)):
            warn_of_shared_process(shared, stacklevel=5)
        _answered.append(call.source)
        return [_answer(call, index, wanted, partial(shown.receive, index)) for index in indices]
    import_for(wanted)
    source = call.source
    if len(targets) == 1 or call.prepare or not (isinstance(source, str) and library_of(source)):
        return forked([partial(_answer, call, index, wanted) for index in indices], shown.receive)

    def of_library(send: Send) -> Sequence[Answer | NoAnswer]:
        import_library(source)
        request = call.read()
        calls = [partial(_answer, request, index, wanted) for index in indices]
        return forked(calls, lambda index, message: send((index, message)))

    (found,) = forked([of_library], lambda _, sent: shown.receive(*sent))
    return [found] * len(targets) if isinstance(found, NoAnswer) else found


def bundled(saved: Mapping[str, SavedPrograms], prepare: Callable[[], None] | None) -> bytes:
    """Return a bundle of saved programs by name."""

    def made(send: Send) -> bytes:
        root = Path.cwd()
        if prepare is not None:
            prepare()
        return archive_of({name: each.program for name, each in saved.items()}, root=root)

    if why_shared() is not None:
        return made(lambda message: None)
    (found,) = forked([made], lambda index, message: None)
    if isinstance(found, NoAnswer):
        raise InvalidValue(f"the process that writes the bundle ended with {found.reason}")
    return found


def _answer(asked: CheckCall | Request, index: int, wanted: Wanted, send: Send) -> Answer:
    root = Path.cwd()  # Before the model's file can change it.
    request = asked.read() if isinstance(asked, CheckCall) else asked
    return answer_for(request, index, wanted, _Announcer(send), root=root)


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
