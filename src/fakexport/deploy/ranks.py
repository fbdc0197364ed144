"""The processes that run the ranks of a model together, as `torchrun` starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fakexport.archive import describe
from fakexport.documents import ParallelRecord
from fakexport.error import InvalidValue

from .artifact import DeployError


@dataclass(frozen=True)
class RankOfArchive:
    """The program of an archive that a process runs: its method in a bundle of ranks, and which rank it is.

    Both are None where there is one: of an archive of one program, and for a program that runs alone.
    """

    method: str | None
    record: ParallelRecord | None

    @property
    def is_first(self) -> bool:
        """Whether the process speaks for all of them, which have the same outputs."""
        return self.record is None or self.record.rank == 0


def rank_of_archive(
    path: str | os.PathLike[str], rank: int | None = None, method: str | None = None
) -> RankOfArchive:
    """Return which program of an archive a process runs.

    Args:
        path: An archive; of a bundle of ranks (`rank0`, `rank1`, ...) the process chooses its own.
        rank: The rank. Default: that of the process, which `torchrun` sets as `RANK`.
        method: Chosen by the caller.
    Raises:
        ValueError: The archive has no such rank.
        ArchiveError, OSError: It is refused, or cannot be read.
    """
    methods = describe(path).manifest.methods
    if method is not None and method in methods:
        return RankOfArchive(method, methods[method].parallel)
    ranks = {about.parallel.rank: name for name, about in methods.items() if about.parallel is not None}
    launched = _launched()
    asked = launched[0] if rank is None and launched is not None else rank
    if rank is not None and asked not in ranks:
        if not ranks:
            raise InvalidValue(f"{path} is not of one rank of a model: leave out --rank")
        has = ", ".join(map(str, sorted(ranks)))
        raise InvalidValue(f"{path} has no program of rank {asked}: its ranks are {has}")
    if asked is None or asked not in ranks:
        only = next(iter(methods.values())) if len(methods) == 1 else None
        return RankOfArchive(method, None if only is None else only.parallel)
    name = ranks[asked]
    return RankOfArchive(name if len(methods) > 1 else None, methods[name].parallel)


@contextmanager
def joined(record: ParallelRecord | None) -> Iterator[None]:
    """Let the collectives of a rank's program find the other ranks, until the block ends.

    Args:
        record: The program's; None: it has no collectives.
    Raises:
        DeployError: The process is not one of so many that `torchrun` started, or has another rank.
    """
    if record is None or torch.distributed.is_initialized():
        yield
        return
    launched = _launched()
    if launched is None:
        raise DeployError(
            f"the program is rank {record.rank} of {record.ranks}, which run together: start it with "
            f"torchrun --nproc-per-node {record.ranks} -m fakexport run ..."
        )
    if launched != (record.rank, record.ranks):
        raise DeployError(
            f"the program is rank {record.rank} of {record.ranks}, and this process is rank {launched[0]} of "
            f"{launched[1]}"
        )
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def _launched() -> tuple[int, int] | None:
    """Return the rank of the process and how many there are, as `torchrun` says."""
    rank, ranks = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(ranks)) if rank.isdecimal() and ranks.isdecimal() else None
