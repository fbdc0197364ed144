"""Run the checks of a sweep as Ray tasks on a cluster."""

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
    """A cluster cannot be reached, or cannot run the checks. The message is one line."""


@contextlib.contextmanager
def ray_cluster(address: str) -> Iterator[None]:
    """Connect to a cluster until the block ends, and then kill tasks that are still running.

    Args:
        address: The address for `ray.init`: `local` for a cluster that is started on this machine and ends
            with the block, `auto`, `HOST:PORT`, or `ray://HOST:PORT`.
    Raises:
        RayFault: no cluster with this version of Ray answers at the address.
        ModuleNotFoundError: Ray is not installed.
    """
    import ray

    options: dict[str, Any] = {}
    if address == _LOCAL:
        # Disable usage statistics for a cluster that fakexport starts.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options = {"include_dashboard": False}
    with _signals_kept():
        try:
            _check_reachable(address)
            ray.init(address, logging_level=logging.ERROR, **options)
        except (OSError, RuntimeError, ValueError) as error:
            raise RayFault(f"cannot connect to Ray at {address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Check the port first: Ray 2.60 waits 15 minutes for a port without a listener."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), _CONNECT_S).close()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Preserve the SIGTERM handler of the sweep, because `ray.init` replaces it."""
    is_main = threading.current_thread() is threading.main_thread()
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, kept)


def ray_records(sweep: Sweep, items: Sequence[SweepItem]) -> Generator[SweepRecord]:
    """Run checks as tasks on the cluster of `ray_cluster`, and yield each record when it is ready.

    A task reserves one CPU and the memory limit of a check. Ray reruns a task if its node dies. A check that
    exceeds a limit or crashes is not rerun, because that is the result of the check.

    Raises:
        RayFault: a node lacks fakexport or the folder of the zoo file, or no node is large enough.
    """
    import ray
    from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError

    needed = {"CPU": 1, "memory": sweep.limits.bytes or 0}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(name, 0) >= value for name, value in needed.items()) for node in nodes):
        memory = f" and {needed['memory']:,} bytes of memory" if sweep.limits.bytes else ""
        raise RayFault(f"no node of the Ray cluster has the CPU{memory} that a check needs")
    task = ray.remote(num_cpus=1, memory=sweep.limits.bytes, max_retries=_RETRIES)(_check)
    alone = replace(sweep, items=())
    waiting = {task.remote(alone, item): item for item in items}
    while waiting:
        done, _ = ray.wait(list(waiting))
        item = waiting.pop(done[0])
        try:
            yield ray.get(done[0])
        except RayTaskError as error:
            raise RayFault(f"a Ray task failed: {item.command}: {error.cause}") from error
        except OutOfMemoryError as error:
            yield _lost(item, STATUSES[4], error)
        except (NodeDiedError, WorkerCrashedError) as error:
            yield _lost(item, STATUSES[5], error)
        except RayError as error:
            raise RayFault(f"Ray: {error}") from error


def _check(sweep: Sweep, item: SweepItem) -> SweepRecord:
    if not sweep.folder.is_dir():
        raise RayFault(
            f"{sweep.folder} does not exist on {os.uname().nodename}: each Ray node needs the zoo file's "
            "folder"
        )
    return check_item(item, sweep)


def _lost(item: SweepItem, status: str, error: Exception) -> SweepRecord:
    """Return a record, without a machine, for a check that crashed its node or Ray's process on each try."""
    reason = f"{type(error).__name__} after {_RETRIES + 1} tries"
    return SweepRecord(
        command=item.command, status=status, reason=reason, seconds=0.0, peak_bytes=0, report=None
    )
