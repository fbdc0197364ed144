"""Run each comparison in its own process. An aborted operator is counted and does not stop the others."""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch
from torch.testing._internal.opinfo.core import OpInfo

from .comparison import Outcome, compare
from .samples import dtypes_of
from .ways import WAYS

__all__ = ["Plan", "run"]

# The parent has imported everything and used no emulated device, so a fork starts in milliseconds.
_FORK = multiprocessing.get_context("fork")

Unit = tuple[torch.dtype, str]
"""A dtype and a way, which one report covers."""


@dataclass(frozen=True)
class Plan:
    """Options of a measurement.

    Args:
        dtype: `float32`, another name without `torch.`, or `all`.
        samples: `first` or `all`.
        ways: Keys of `WAYS`.
        target: The topology to emulate; None measures stock torch.
        timeout_s: Time limit for one operator, dtype and way.
        processes: Number of operators that are measured at the same time.
        measured: Each `(operator, dtype, way)` that is already measured.
    """

    dtype: str
    samples: str
    ways: tuple[str, ...]
    target: str | None
    timeout_s: float = 300.0
    processes: int = 2
    measured: frozenset[tuple[str, str, str]] = frozenset()


@dataclass
class _Job:
    """A process that measures one operator, and the units that remain."""

    op: OpInfo
    units: list[Unit]
    process: BaseProcess
    results: Connection
    deadline: float


def run(ops: Sequence[OpInfo], plan: Plan) -> Iterator[list[Outcome]]:
    """Yield the outcomes of each unit as it finishes, in no particular order."""
    _import_everything()
    waiting = [(op, units) for op in reversed(ops) if (units := _units(op, plan))]
    jobs: list[_Job] = []
    while waiting or jobs:
        while waiting and len(jobs) < plan.processes:
            jobs.append(_start(*waiting.pop(), plan))
        next_deadline = min(job.deadline for job in jobs)
        wait([job.results for job in jobs], timeout=max(0.0, next_deadline - time.monotonic()))
        for job in list(jobs):
            yield from _received(job, plan)
            ended = _end_of(job)
            if ended is None:
                continue
            jobs.remove(job)
            if job.units:
                dtype, way = job.units.pop(0)
                yield [_lost(job.op, dtype, way, ended)]
                if job.units:
                    waiting.append((job.op, job.units))


def _import_everything() -> None:
    """Run a small export, which imports most of torch. This takes seconds, and forks inherit the modules."""
    torch.set_num_threads(1)
    torch.export.export(torch.nn.ReLU(), (torch.ones(2),))


def _units(op: OpInfo, plan: Plan) -> list[Unit]:
    units = [(dtype, way) for way in plan.ways for dtype in dtypes_of(op, plan.dtype, way == "autograd")]
    return [unit for unit in units if (op.full_name, _name(unit[0]), unit[1]) not in plan.measured]


def _start(op: OpInfo, units: list[Unit], plan: Plan) -> _Job:
    results, far_end = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_measure, args=(op, list(units), plan, far_end), daemon=True)
    process.start()
    far_end.close()
    return _Job(op, units, process, results, time.monotonic() + plan.timeout_s)


def _measure(op: OpInfo, units: list[Unit], plan: Plan, results: Connection) -> None:
    warnings.simplefilter("ignore")
    for dtype, way in units:
        try:
            results.send(compare(op, dtype, way, plan.samples, plan.target))
        except Exception as error:  # an error of the samples or of this benchmark is reported
            traceback.print_exc()
            results.send([_lost(op, dtype, way, f"{type(error).__name__} in the measurement")])


def _received(job: _Job, plan: Plan) -> Iterator[list[Outcome]]:
    while job.units and job.results.poll():
        try:
            yield job.results.recv()
        except EOFError:
            return
        job.units.pop(0)
        job.deadline = time.monotonic() + plan.timeout_s


def _end_of(job: _Job) -> str | None:
    """Return how the process ended, or None if it still runs."""
    if not job.units:
        job.process.join()
        return "finished"
    if time.monotonic() > job.deadline:
        job.process.kill()
        job.process.join()
        return "ran out of time"
    if job.process.is_alive():
        return None
    if job.results.poll() and not job.results.closed:
        job.process.join()
    code = job.process.exitcode or 0
    return f"aborted with {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _lost(op: OpInfo, dtype: torch.dtype, way: str, how: str) -> Outcome:
    first_step = WAYS[way][1][0]
    outcome = Outcome(op.full_name, _name(dtype), first_step, on_cpu=1)
    outcome.problems[how] += 1
    return outcome
