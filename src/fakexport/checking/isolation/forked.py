"""Fork processes, and record in the parent which files they read and what they download."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from fakexport._torch.tracing_lock import no_trace_running
from fakexport.files import inputs_read, remember_inputs
from fakexport.files.processes import IN_PROCESS, OWN_THREAD, NoAnswer, Send, run_forked
from fakexport.models.hub import record_transfer, transfers_recorded

_LOCKING = ("fakexport", "importlib", "torch")  # Their code may hold locks, which a fork would copy.
T = TypeVar("T")


@dataclass(frozen=True)
class _Reads:
    """Files that a forked process opened, and its transfers from the hub."""

    inputs: frozenset[tuple[int, int]]
    transfers: Mapping[str, int]


def forked(
    calls: Sequence[Callable[[Send], T]],
    on_message: Callable[[int, Any], None],
    meanwhile: Callable[[], bool] | None = None,
) -> list[T | NoAnswer]:
    """Call functions as `run_forked` does, and record the files and hub data that they read."""

    def receive(index: int, message: Any) -> None:
        if not isinstance(message, _Reads):
            on_message(index, message)
            return
        remember_inputs(message.inputs)
        for name, nbytes in message.transfers.items():
            record_transfer(name, nbytes)

    has_native_threads = len([*Path("/proc/self/task").iterdir()]) > threading.active_count()
    return run_forked(
        [partial(_reads_sent, call) for call in calls],
        jobs=len(os.sched_getaffinity(0)),
        on_message=receive,
        guard=no_trace_running,
        start=_one_thread if "torch" in sys.modules and has_native_threads else None,
        meanwhile=meanwhile,
    )


def _reads_sent(call: Callable[[Send], T], send: Send) -> T:
    with transfers_recorded() as transfers:
        try:
            return call(send)
        finally:
            send(_Reads(inputs_read(), transfers))


def _one_thread() -> None:
    """Limit torch to one thread. A fork does not copy native thread pools, so work in a pool would hang."""
    sys.modules["torch"].set_num_threads(1)


def why_shared() -> str | None:
    """Return why user code cannot run in a fork of this process, as a clause; None if it can."""
    if os.environ.get(IN_PROCESS):
        return f"{IN_PROCESS} is set"
    if sys.platform != "linux":
        return "only Linux can fork a process that has loaded torch"
    if (torch := sys.modules.get("torch")) is not None:
        for name, accelerator in (("CUDA", torch.cuda), ("XPU", torch.xpu)):
            if accelerator.is_initialized():
                return f"{name} is initialized in this process, and does not work in a fork"
    busy = _busy_thread()
    return None if busy is None else f"the thread {busy} runs fakexport or torch, or imports a module"


def _busy_thread() -> str | None:
    """Return the name of a different thread that may hold a lock, which a fork would never release."""
    own, names = threading.get_ident(), {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        is_ours = ident == own or names.get(ident, "").startswith(
            OWN_THREAD
        )  # These threads hold no such lock.
        found: FrameType | None = None if is_ours else frame
        while found is not None:
            if str(found.f_globals.get("__name__")).partition(".")[0] in _LOCKING:
                return names.get(ident, str(ident))
            found = found.f_back
    return None
