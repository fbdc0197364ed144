"""Find out which ranks of a parallel model run the same program as rank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from torch.export import ExportedProgram

from fakexport.checking.rank_programs import RankProgram
from fakexport.emulation.devices import DeviceProfile
from fakexport.error import FakexportError
from fakexport.exporting.program import (
    Collective,
    collectives,
    differing_numbers,
    facts_of,
    least_received,
    star,
)
from fakexport.files.documents import ParallelRecord
from fakexport.models.parallel import Degrees, local_shapes
from fakexport.report import RankGroup, RankSummary
from fakexport.rules.diagnostics import Diagnostic


@dataclass(frozen=True)
class RankFailure:
    """A rank failed to export, or its program differs from those of ranks with the same weight shapes."""

    rank: int
    found: tuple[Diagnostic, ...]
    notes: tuple[str, ...] = ()


class RanksDiffer(FakexportError, RuntimeError):
    """Ranks with equal weight shapes have different programs, so those of untraced ranks are unknown."""


def summarise_ranks(
    first: ExportedProgram,
    degrees: Degrees,
    traced: Callable[[int], RankProgram | RankFailure],
    *,
    profile: DeviceProfile,
    is_every: bool = False,
) -> RankSummary | RankFailure:
    """Return a summary of the ranks of a model.

    Ranks are grouped by the shapes of their weights. The first and the last rank of each group are traced, or
    every rank if `is_every`. Within a group, programs must be the same except for constants.

    Args:
        first: The program of rank 0.
        traced: Returns what is known about the program of a rank.
    Raises:
        RanksDiffer: ranks with the same weight shapes have different programs.
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
            program = traced(rank)
            if isinstance(program, RankFailure):
                return program
            seen.append(rank)
            programs.append(program)
        for program in programs[1:]:
            assert programs[0].numbers is not None
            assert program.numbers is not None
            differing = differing_numbers(programs[0].numbers, program.numbers)
            if differing is None:
                who = f"ranks {ranks[0]} to {ranks[-1]}"
                raise RanksDiffer(
                    f"{who} have different programs, although their weights have the same shapes"
                )
            numbers.update(dict.fromkeys(map(star, differing)))
        groups.append(RankGroup(tuple(ranks), programs[0].weight_bytes))
    found, rate = collectives(first), profile.link_bandwidth_bytes_per_s
    return RankSummary(
        degrees=degrees.canonical,
        groups=tuple(groups),
        whole_bytes=groups[0].weight_bytes + _elsewhere_bytes(first, record),
        traced=tuple(sorted(seen)),
        own_numbers=tuple(numbers),
        collectives=found,
        unused_rules=record.unused_rules,
        received_bytes=_received_bytes(found, degrees.ranks),
        link_bytes_per_s=rate / 2 if rate else None,  # The profile has the sum of both directions.
    )


def _received_bytes(found: Sequence[Collective], ranks: int) -> int | None:
    """Return the minimum number of bytes that a rank receives per call; None if a size is unknown."""
    sizes = [(each.kind, each.bytes, each.count) for each in found]
    if any(size is None for _, size, _ in sizes):
        return None
    return sum(count * int(least_received(kind, size, ranks)) for kind, size, count in sizes)


def _elsewhere_bytes(program: ExportedProgram, record: ParallelRecord) -> int:
    weights = {id(program.state_dict[name]): name for name in record.shards if name in program.state_dict}
    return sum(
        (prod(record.shards[name].shape) - program.state_dict[name].numel())
        * program.state_dict[name].itemsize
        for name in weights.values()
    )
