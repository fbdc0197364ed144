"""The checks of a sweep as tasks of Ray, on the machines of a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fakexport.error import FakexportError

from .run_file import STATUSES, SweepRecord
from .sweep import Sweep, check_item
from .zoo_file import SweepItem

_LOCAL = "local"
_RETRIES = 3
_CONNECT_S = 10


class RayFault(FakexportError, RuntimeError):
    """A cluster cannot be reached, or cannot run the checks. One line."""


@contextlib.contextmanager
def ray_cluster(address: str) -> Iterator[None]:
    """Connect to a cluster for the duration of the block; what still runs on it then is killed.

    Args:
        address: What `ray.init` takes: `local` for a cluster that is started on this machine and ends with
            the block, `auto`, `HOST:PORT`, or `ray://HOST:PORT`.
    Raises:
        RayFault: no cluster of this version of Ray answers at the address.
        ModuleNotFoundError: Ray is not installed.
    """
    import ray

    options: dict[str, Any] = {}
    if address == _LOCAL:
        # A cluster of fakexport's own sends no statistics of its use to Ray's makers.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options = {"include_dashboard": False}
    with _signals_kept():
        try:
            _check_reachable(address)
            ray.init(address, logging_level=logging.ERROR, **options)
        except (OSError, RuntimeError, ValueError) as error:
            raise RayFault(f"Ray at {address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray 2.60 tries for a quarter of an hour to reach a port at which nothing listens."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), _CONNECT_S).close()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """`ray.init` replaces the handler of SIGTERM, by which a sweep ends in order."""
    is_main = threading.current_thread() is threading.main_thread()
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, kept)


def ray_records(sweep: Sweep, items: Sequence[SweepItem]) -> Generator[SweepRecord]:
    """Run checks as tasks of the cluster that `ray_cluster` connected to, and yield each when it ends.

    A task takes one CPU, and as much memory as a check may. Ray runs it again when its node dies; a check
    that is killed at a limit or crashes is a record and not run again.

    Raises:
        RayFault: a node has no folder of the zoo file, or no fakexport; no node is large enough.
    """
    import ray
    from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError

    needed = {"CPU": 1, "memory": sweep.limits.bytes or 0}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(name, 0) >= value for name, value in needed.items()) for node in nodes):
        memory = f" and {needed['memory']:,} bytes of memory" if sweep.limits.bytes else ""
        raise RayFault(f"no node of the cluster has a CPU{memory} for a check")
    task = ray.remote(num_cpus=1, memory=sweep.limits.bytes, max_retries=_RETRIES)(_check)
    alone = replace(sweep, items=())
    waiting = {task.remote(alone, item): item for item in items}
    while waiting:
        done, _ = ray.wait(list(waiting))
        item = waiting.pop(done[0])
        try:
            yield ray.get(done[0])
        except RayTaskError as error:
            raise RayFault(f"Ray: {item.command}: {error.cause}") from error
        except OutOfMemoryError as error:
            yield _lost(item, STATUSES[4], error)
        except (NodeDiedError, WorkerCrashedError) as error:
            yield _lost(item, STATUSES[5], error)
        except RayError as error:
            raise RayFault(f"Ray: {error}") from error


def _check(sweep: Sweep, item: SweepItem) -> SweepRecord:
    if not sweep.folder.is_dir():
        raise RayFault(f"{sweep.folder} is not on {os.uname().nodename}: each node needs the zoo's folder")
    return check_item(item, sweep)


def _lost(item: SweepItem, status: str, error: Exception) -> SweepRecord:
    """A check that took its node or Ray's process down each time: where is not known."""
    reason = f"{type(error).__name__} after {_RETRIES + 1} tries"
    return SweepRecord(
        command=item.command, status=status, reason=reason, seconds=0.0, peak_bytes=0, report=None
    )
