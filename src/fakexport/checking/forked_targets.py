"""Check each target in a separate process, forked before the model's file is imported."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fakexport.checking.check_steps import STAGES, Announcer
from fakexport.checking.isolation import forked, why_shared
from fakexport.checking.size_parts import Row, SizeParts
from fakexport.checking.target_answer import Answer, Wanted, versions
from fakexport.checking.target_check import answer_for, import_for_checks
from fakexport.checking.targets import Target, targets_of
from fakexport.emulation.devices import peak_bytes
from fakexport.error import InvalidValue
from fakexport.exporting.capture import ModelRequest, Request
from fakexport.files.documents import SizeRange, sizes_text
from fakexport.files.processes import IN_PROCESS, NoAnswer, Send, warn_of_shared_process
from fakexport.models import DynamicDims, import_library, library_of
from fakexport.report import (
    BlockCount,
    Progress,
    SavedPrograms,
    Stage,
    Step,
    TargetSpec,
    Timings,
    Verdict,
    loaded_archive,
    merged_archive,
)
from fakexport.report.diagnose import diagnose_process_ended

_lock = threading.RLock()  # Checks in several threads run one after the other.
_answered: list[object] = []  # Sources that were checked in this process.


class ShownProgress:
    """Reports the progress of the processes that check targets."""

    def __init__(self, names: Sequence[str], on_progress: Callable[[Progress], None] | None) -> None:
        self._names, self._on_progress = names, on_progress
        self._blocks = BlockCount()
        self._stages: dict[int, Stage] = {}

    def receive(self, index: int, message: tuple[str, Any]) -> None:
        kind, value = message
        if kind == "step":
            step, finding, total = value
            self._stages[index] = STAGES[step]
            self._blocks = BlockCount(total=total or 0)
            self._show(index, step, finding, None if total is None else self._blocks)
        else:
            self._blocks.done, self._blocks.module = value

    def compare(self) -> None:
        self._show(len(self._names) - 1, "compare", "", None)

    def failed(self, index: int, ended: NoAnswer, spec: TargetSpec, source: str) -> Answer:
        """Return the result for a target whose process ended without returning one."""
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
    request: Request, targets: Sequence[Target], wanted: Wanted, shown: ShownProgress
) -> Sequence[Answer | NoAnswer]:
    """Return the result of each target, in order.

    A source from a library is read once, in a process that is then forked for each target. This is possible
    because reading it runs no user code and does not depend on devices.

    Raises:
        ValueError, TypeError: invalid usage, as for `check`.
    """
    indices = range(len(targets))
    answer = partial(_answer, targets, wanted)

    with _lock:
        if (shared := why_shared()) is not None:
            if len(targets) > 1 or (_answered and not os.environ.get(IN_PROCESS)):
                warn_of_shared_process(shared, stacklevel=4)
            _answered.append(request.source)
            return [answer(request, index, partial(shown.receive, index)) for index in indices]
        import_for_checks()
        source = request.source
        if len(targets) == 1 or request.prepare or not (isinstance(source, str) and library_of(source)):
            return forked([partial(answer, request, index) for index in indices], shown.receive)

        def of_library(send: Send) -> Sequence[Answer | NoAnswer]:
            import_library(source)
            read = request.read()
            calls = [partial(answer, read, index) for index in indices]
            return forked(calls, lambda index, message: send((index, message)))

        (found,) = forked([of_library], lambda _, sent: shown.receive(*sent))
        return [found] * len(targets) if isinstance(found, NoAnswer) else found


def answers_in_parts(
    request: Request, dynamic: DynamicDims, targets: Sequence[Target], wanted: Wanted, shown: ShownProgress
) -> Sequence[tuple[int, TargetSpec, Answer | NoAnswer]]:
    """Return the results of the programs that divide the sizes of a request among them, for each target.

    Each result has the index of the target, and the row that it has in the report.
    """
    answer = partial(_answer, targets, wanted)

    def rows(receive: Callable[[int, Any], None], index: int) -> list[Row]:
        def ask(parts: Sequence[Request]) -> Sequence[Answer | NoAnswer]:
            calls = [partial(answer, part, index) for part in parts]
            if why_shared() is not None:
                return [call(partial(receive, index)) for call in calls]
            return forked(calls, lambda _, message: receive(index, message))

        return SizeParts(request, dynamic, ask).rows()

    def of_library(send: Send) -> list[list[Row]]:
        import_library(request.source)
        receive: Callable[[int, Any], None] = lambda index, message: send((index, message))  # noqa: E731
        return [rows(receive, index) for index in range(len(targets))]

    with _lock:
        is_library = isinstance(request.source, str) and library_of(request.source) is not None
        if (shared := why_shared()) is not None:
            warn_of_shared_process(shared, stacklevel=4)
        if shared is not None or request.prepare is not None or not is_library:
            import_for_checks()
            found = [rows(shown.receive, index) for index in range(len(targets))]
        else:
            import_for_checks()
            (made,) = forked([of_library], lambda _, sent: shown.receive(*sent))
            found = [[((), made)]] * len(targets) if isinstance(made, NoAnswer) else made
    return [
        (index, _of_part(targets[index], sizes).spec, each)
        for index, of_target in enumerate(found)
        for sizes, each in of_target
    ]


def _answer(
    targets: Sequence[Target], wanted: Wanted, asked: Request | ModelRequest, index: int, send: Send
) -> Answer:
    root = Path.cwd()  # Read before the model's file can change it.
    read = asked.read() if isinstance(asked, Request) else asked
    target = _of_part(targets_of(read, targets)[index], read.asked.sizes)
    return answer_for(read, target, wanted, Announcer(send), root=root)


def _of_part(target: Target, sizes: tuple[SizeRange, ...]) -> Target:
    if not sizes:
        return target
    name = f"{target.spec.name} {sizes_text(sizes)}"
    return replace(target, spec=replace(target.spec, name=name, sizes=sizes_text(sizes)))


def bundled(saved: Mapping[str, SavedPrograms], prepare: Callable[[], None] | None) -> bytes:
    """Return the content of a bundle of all these saved programs.

    Args:
        saved: The programs by name. The method of a rank or a stage is preceded by the name.
        prepare: Imports libraries that the programs need.
    """

    if (merged := merged_archive(saved)) is not None:
        return merged

    def made(send: Send) -> bytes:
        root = Path.cwd()
        if prepare is not None:
            prepare()
        return loaded_archive(saved, root=root)

    if why_shared() is not None:
        return made(lambda message: None)
    (found,) = forked([made], lambda index, message: None)
    if isinstance(found, NoAnswer):
        raise InvalidValue(f"the process that writes the bundle ended without a result: {found.reason}")
    return found
