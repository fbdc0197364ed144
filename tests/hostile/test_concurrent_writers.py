"""Processes that write one file at the same time lose nothing that another has written."""

from __future__ import annotations

import multiprocessing
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fakexport.checking.lock import LockEntry, read_lock, write_lock
from fakexport.checking.sweep import RunFile
from fakexport.checking.sweep.run_file import RunFileError
from fakexport.cli.lock_session import LockSession
from tests.hostile.kill_points import CAN_TRACE, run_child

PROCESSES = 16


def entry(number: int) -> LockEntry:
    return LockEntry(
        source=f"model.py:f{number}",
        target="cpu",
        options={},
        topology="cpu",
        verdict="fails at capture",
        codes=("FE201",),
        versions={},
        weights={},
        program=None,
    )


def session(path: Path, number: int) -> LockSession:
    """What `fakexport lock model.py:fNUMBER` has found when it comes to its end."""
    made = LockSession(path, is_updating=True, is_whole=False, locked=read_lock(path), accept="")
    made._now[entry(number).key] = entry(number)
    return made


def write_at_once(path: Path, number: int, start: Any) -> None:
    made = session(path, number)
    start.wait()
    made.end()


def processes(target: Any, *arguments: Any) -> list[Any]:
    context = multiprocessing.get_context("fork")
    started = [
        context.Process(target=target, args=(*arguments[:1], at, *arguments[1:])) for at in range(PROCESSES)
    ]
    for each in started:
        each.start()
    return started


def test_each_of_many_locks_keeps_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "fakexport.lock"
    write_lock(path, [entry(100)])
    start = multiprocessing.get_context("fork").Barrier(PROCESSES)

    for each in processes(write_at_once, path, start):
        each.join()
        assert each.exitcode == 0

    assert read_lock(path) == {entry(at).key: entry(at) for at in (*range(PROCESSES), 100)}
    assert list(tmp_path.iterdir()) == [path]


def written_in_children(path: Path, number: int, results: Any) -> None:
    """Locks six entries, each in a child that is killed somewhere in about half of the cases."""
    dice = random.Random(number)
    for at in range(6):
        key = 1000 * number + at
        ended = run_child(lambda key=key: str(session(path, key).end()), dice.randint(1, 13))
        if ended.code == 0:
            results.put(key)
    results.put(None)


@pytest.mark.skipif(not CAN_TRACE, reason="calls are traced on Linux, on x86-64")
def test_what_a_writer_has_written_outlives_the_kills_of_all_others(tmp_path: Path) -> None:
    path = tmp_path / "fakexport.lock"
    write_lock(path, [entry(100)])
    results = multiprocessing.get_context("fork").SimpleQueue()
    running = processes(written_in_children, path, results)
    keys, ended = {100}, 0
    while ended < PROCESSES:
        key = results.get()
        ended += key is None
        keys |= set() if key is None else {key}
    for each in running:
        each.join()

    session(path, 200).end()

    assert len(keys) > PROCESSES
    assert {entry(key).key for key in (*keys, 200)} <= read_lock(path).keys()
    assert list(tmp_path.iterdir()) == [path]


def test_two_sweeps_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"

    with (
        closing(RunFile(path, resume=False)),
        pytest.raises(RunFileError, match="is being written by another"),
    ):
        RunFile(path, resume=True)

    with closing(RunFile(path, resume=True)) as again:
        assert again.records == {}
