"""Connect the processes that run the ranks or pipeline stages of a model. `torchrun` starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fakexport.archive import MethodManifest, method_manifests
from fakexport.error import InvalidValue
from fakexport.files.documents import ParallelRecord, StageRecord, are_divided

from .artifact import DeployError


@dataclass(frozen=True)
class RankOfArchive:
    """The program of an archive that this process runs.

    `method` is the program's name in a bundle, or the names of several programs that divide the sizes of a
    call among them. It is None if the archive has only one program, or if the process runs all pipeline
    stages. `record` is None if the program is not sharded. `stage` is None unless this
    process runs one stage, and other processes run the other stages.
    """

    method: str | tuple[str, ...] | None
    record: ParallelRecord | None
    stage: StageRecord | None = None

    @property
    def is_first(self) -> bool:
        """Whether this process should report the outputs. They are the same on all ranks."""
        return self.place is None or self.place[0] == 0

    @property
    def place(self) -> tuple[int, int] | None:
        """The number of this process and the number of processes that run together, or None for one."""
        if self.record is not None:
            return self.record.rank, self.record.ranks
        return None if self.stage is None else (self.stage.stage, self.stage.stages)


def rank_of_archive(
    path: str | os.PathLike[str],
    rank: int | None = None,
    method: str | None = None,
    *,
    trust: bool = False,
) -> RankOfArchive:
    """Return the program of an archive that this process should run.

    In a bundle of ranks (`rank0`, `rank1`, ...), this is the program of `rank`. The default rank is the
    environment variable `RANK`, which `torchrun` sets for each process. A `method` takes precedence over the
    rank; if the archive does not have it, `load` raises an error. If the archive does not have `rank`, a
    `ValueError` is raised. `trust` is the same as for `load`.
    """
    methods = method_manifests(path, trust=trust)
    if method is not None:
        return RankOfArchive(method, methods[method].parallel if method in methods else None)
    if any(about.stage is not None for about in methods.values()):
        if any(about.parallel is not None for about in methods.values()):
            raise InvalidValue(f"{path} has the stages of several ranks: choose one program (--method NAME)")
        if rank is None:
            return _stage_of_process(methods)
    ranks: dict[int, list[str]] = {}
    for name, about in methods.items():
        if about.parallel is not None:
            ranks.setdefault(about.parallel.rank, []).append(name)
    launched = _launched()
    asked = launched[0] if rank is None and launched is not None else rank
    if rank is not None and asked not in ranks:
        if not ranks:
            raise InvalidValue(f"{path} does not contain ranks of a model: remove --rank")
        has = ", ".join(map(str, sorted(ranks)))
        raise InvalidValue(f"{path} has no program for rank {asked}: its ranks are {has}")
    if asked is None or asked not in ranks:
        only = next(iter(methods.values())) if len(methods) == 1 else None
        return RankOfArchive(None, None if only is None else only.parallel)
    first, *more = names = ranks[asked]
    if more and not are_divided(methods[name].sizes for name in names):
        raise InvalidValue(
            f"{path} has several programs for rank {asked}: choose one of {', '.join(names)} (--method NAME)"
        )
    own = tuple(names) if more else first
    return RankOfArchive(own if len(methods) > 1 else None, methods[first].parallel)


def _stage_of_process(methods: Mapping[str, MethodManifest]) -> RankOfArchive:
    launched = _launched()
    for name, about in methods.items():
        if about.stage is not None and launched == (about.stage.stage, about.stage.stages):
            return RankOfArchive(name, None, about.stage)
    return RankOfArchive(None, None)


@contextmanager
def joined(own: RankOfArchive | None) -> Iterator[None]:
    """Connect this process to those that run the other ranks or stages, so that they can communicate.

    Raises:
        DeployError: `torchrun` did not start this process with the expected rank and number of ranks, or
            another process ended.
    """
    if own is None or own.place is None or torch.distributed.is_initialized():
        yield
        return
    rank, ranks = own.place
    launched = _launched()
    if launched is None:
        raise DeployError(
            f"the program is rank {rank} of {ranks} ranks that run together: start it "
            f"with torchrun --nproc-per-node {ranks} -m fakexport run ..."
        )
    if launched != (rank, ranks):
        raise DeployError(
            f"the program is rank {rank} of {ranks}, but this process is rank {launched[0]} of {launched[1]}"
        )
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
        torch.distributed.barrier()
    except RuntimeError as error:
        if isinstance(error, torch.distributed.DistBackendError) or "/gloo/transport/" in str(error):
            raise DeployError("the connection to another process ended: see what it printed") from error
        raise
    finally:
        torch.distributed.destroy_process_group()


def _launched() -> tuple[int, int] | None:
    """Return the rank of this process and the number of ranks, if `torchrun` has set them."""
    rank, ranks = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(ranks)) if rank.isdecimal() and ranks.isdecimal() else None
