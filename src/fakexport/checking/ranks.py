"""The other ranks of a model: which of them run the program of rank 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from torch.export import ExportedProgram

from fakexport.diagnostics import Diagnostic
from fakexport.documents import ParallelRecord
from fakexport.error import FakexportError
from fakexport.parallel import Degrees, local_shapes
from fakexport.program import collectives, differing_numbers, facts_of, star, summarise
from fakexport.report import RankGroup, RankSummary


@dataclass(frozen=True)
class RankFailure:
    """A rank that has no program, or another one than ranks with weights of the same shapes."""

    rank: int
    found: tuple[Diagnostic, ...]
    notes: tuple[str, ...] = ()


class RanksDiffer(FakexportError, RuntimeError):
    """Ranks whose weights have the same shapes have other programs: nothing may be said of ranks between."""


def summarise_ranks(
    first: ExportedProgram,
    degrees: Degrees,
    traced: Callable[[int], ExportedProgram | RankFailure],
    *,
    is_every: bool = False,
) -> RankSummary | RankFailure:
    """Return what the ranks of a model have in common.

    Ranks are grouped by the shapes of their weights. Traced are rank 0, the last rank of each group, which
    has to have the program of the first one but for numbers, and the first one of each other group.

    Args:
        first: The program of rank 0.
        degrees: Of parallelism.
        traced: Returns the program of another rank.
        is_every: Trace all ranks.
    Raises:
        RanksDiffer: Ranks with weights of the same shapes have other programs.
    """
    record = facts_of(first).parallel
    assert record is not None
    by_shapes: dict[object, list[int]] = {}
    for rank in range(degrees.ranks):
        by_shapes.setdefault(local_shapes(record, rank), []).append(rank)
    seen, numbers, groups = [], dict[str, None](), []
    for ranks in by_shapes.values():
        programs = []
        for rank in ranks if is_every else dict.fromkeys((ranks[0], ranks[-1])):
            program = first if rank == 0 else traced(rank)
            if isinstance(program, RankFailure):
                return program
            seen.append(rank)
            programs.append(program)
        for program in programs[1:] or programs:
            differing = differing_numbers(programs[0], program)
            if differing is None:
                who = f"ranks {ranks[0]} to {ranks[-1]}"
                raise RanksDiffer(f"the programs of {who} differ in more than numbers")
            numbers.update(dict.fromkeys(map(star, differing)))
        groups.append(RankGroup(tuple(ranks), _weight_bytes(programs[0])))
    return RankSummary(
        degrees=degrees.canonical,
        groups=tuple(groups),
        whole_bytes=groups[0].weight_bytes + _elsewhere_bytes(first, record),
        traced=tuple(sorted(seen)),
        own_numbers=tuple(numbers),
        collectives=collectives(first),
        unused_rules=record.unused_rules,
    )


def _elsewhere_bytes(program: ExportedProgram, record: ParallelRecord) -> int:
    """Return the bytes of what other ranks hold of the weights of which a program has a part."""
    weights = {id(program.state_dict[name]): name for name in record.shards if name in program.state_dict}
    return sum(
        (prod(record.shards[name].shape) - program.state_dict[name].numel())
        * program.state_dict[name].itemsize
        for name in weights.values()
    )


def _weight_bytes(program: ExportedProgram) -> int:
    summary = summarise(program)
    return sum(totals.total_bytes for totals in (summary.parameters, summary.buffers, summary.constants))
