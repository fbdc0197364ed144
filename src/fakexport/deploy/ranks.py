"""Connect the processes that together run the ranks of a model. `torchrun` starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fakexport.archive import method_manifests
from fakexport.error import InvalidValue
from fakexport.files.documents import ParallelRecord

from .artifact import DeployError


@dataclass(frozen=True)
class RankOfArchive:
    """The program of an archive that this process runs.

    `method` is the program's name in a bundle, or None if the archive has only one program. `record` is None
    if the program is not sharded.
    """

    method: str | None
    record: ParallelRecord | None

    @property
    def is_first(self) -> bool:
        """Whether this process should report the outputs. They are the same on all ranks."""
        return self.record is None or self.record.rank == 0


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
    ranks = {about.parallel.rank: name for name, about in methods.items() if about.parallel is not None}
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
    name = ranks[asked]
    return RankOfArchive(name if len(methods) > 1 else None, methods[name].parallel)


@contextmanager
def joined(record: ParallelRecord | None) -> Iterator[None]:
    """Connect this process to the processes of the other ranks, so that collectives work in the block.

    Raises:
        DeployError: `torchrun` did not start this process with the expected rank and number of ranks.
    """
    if record is None or torch.distributed.is_initialized():
        yield
        return
    launched = _launched()
    if launched is None:
        raise DeployError(
            f"the program is rank {record.rank} of {record.ranks} ranks that run together: start it "
            f"with torchrun --nproc-per-node {record.ranks} -m fakexport run ..."
        )
    if launched != (record.rank, record.ranks):
        raise DeployError(
            f"the program is rank {record.rank} of {record.ranks}, but this process is rank "
            f"{launched[0]} of {launched[1]}"
        )
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def _launched() -> tuple[int, int] | None:
    """Return the rank of this process and the number of ranks, if `torchrun` has set them."""
    rank, ranks = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(ranks)) if rank.isdecimal() and ranks.isdecimal() else None
