"""The programs of a model's ranks, which are traced in several processes if all of them are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import TypeVar

from torch.export import ExportedProgram

from fakexport.checking.isolation import forked
from fakexport.checking.target_answer import Wanted
from fakexport.exporting.program import Fingerprint, ProgramNumbers, facts_of, fingerprint, summarise
from fakexport.exporting.stages import cut
from fakexport.files.documents import SizeRange
from fakexport.files.processes import NoAnswer, Send
from fakexport.report import SavedPrograms
from fakexport.report.diagnose import diagnose_refused_sizes
from fakexport.rules.diagnostics import Diagnostic

T = TypeVar("T")
Starts = tuple[str, ...] | None
"""The first module of each pipeline stage after the first; None if whole programs are saved."""


@dataclass(frozen=True, kw_only=True)
class RankProgram:
    """What is known about the program of a rank, to pass between processes.

    Args:
        numbers: To compare it with the programs of other ranks; None if the model is not sharded.
        weight_bytes: Bytes of parameters, buffers and constants; 0 if the model is not sharded.
        saved: The archive of the program or of its stages.
        fingerprint: The program's fingerprint; None if it was not requested.
        refused: The diagnostic if the program does not accept all of its sizes.
    """

    numbers: ProgramNumbers | None
    weight_bytes: int
    saved: SavedPrograms | None
    fingerprint: Fingerprint | None
    refused: Diagnostic | None

    @classmethod
    def of(
        cls,
        program: ExportedProgram,
        starts: Starts,
        wanted: Wanted,
        sizes: tuple[SizeRange, ...],
        *,
        root: Path,
    ) -> RankProgram:
        """Save a program or, with `starts`, its stages; `root` is passed to `save`."""
        refused = diagnose_refused_sizes([program], sizes) if sizes else None
        saved: SavedPrograms | None = None
        if refused is None and starts is not None:
            saved = SavedPrograms.of_stages(cut(program, starts), root=root)
        elif refused is None:  # No archive may claim sizes that its program does not accept.
            saved = SavedPrograms.of(program, root=root, is_kept=wanted.programs)
        is_rank = facts_of(program).parallel is not None
        return cls(
            numbers=ProgramNumbers.of(program) if is_rank else None,
            weight_bytes=summarise(program).held_bytes().total() if is_rank else 0,
            saved=saved,
            fingerprint=fingerprint(program) if wanted.fingerprints else None,
            refused=refused,
        )


def with_other_ranks(
    ranks: Sequence[int],
    work: Callable[[int, Callable[[], Starts]], RankProgram | None],
    own: Callable[[Callable[[Starts], None]], T],
) -> tuple[T, dict[int, RankProgram | NoAnswer | None]]:
    """Call `work` for ranks in forked processes, and `own` in this process at the same time.

    Args:
        ranks: The ranks of the other processes.
        work: Takes a rank, and a function that waits until `own` has passed on where the stages begin.
        own: Takes a function that passes this on. If `own` does not call it, the other calls are killed.

    Returns:
        The result of `own`, and the results of `work` by rank.
    """
    pipes = {rank: Pipe(duplex=False) for rank in ranks}
    result: list[T] = []
    told: list[Starts] = []

    def of_rank(rank: int, send: Send) -> RankProgram | None:
        return work(rank, pipes[rank][0].recv)

    def of_ranks(send: Send) -> list[RankProgram | NoAnswer | None]:
        return forked([partial(of_rank, rank) for rank in ranks], lambda *_: None)

    def tell(starts: Starts) -> None:
        told.append(starts)
        for _, writer in pipes.values():
            writer.send(starts)

    def meanwhile() -> bool:
        result.append(own(tell))
        return bool(told)

    try:
        found = forked([of_ranks], lambda *_: None, meanwhile)
    finally:
        for ends in pipes.values():
            for end in ends:
                end.close()
    every = found[0] if found else []
    return result[0], dict.fromkeys(ranks, every) if isinstance(every, NoAnswer) else dict(
        zip(ranks, every, strict=False)
    )
