"""Summary of the programs that the ranks of a model run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fakexport.files import escaped
from fakexport.report.quantity import bytes_text, duration_text, plural
from fakexport.report.table import layout

if TYPE_CHECKING:
    from fakexport.exporting.program import Collective

_INDENT = "    "


@dataclass(frozen=True)
class RankGroup:
    """Ranks whose weights have the same shapes.

    Args:
        ranks: Numbers of the ranks; the first rank is 0.
        weight_bytes: Bytes of parameters, buffers and constants on one rank.
    """

    ranks: tuple[int, ...]
    weight_bytes: int


@dataclass(frozen=True)
class RankSummary:
    """The ranks of one target.

    Args:
        degrees: Degrees of parallelism: `tp=8`.
        groups: Ranks grouped by weight shapes; the group of rank 0 is first.
        whole_bytes: Bytes of the weights if one device holds the whole model.
        traced: Ranks that were traced: the first and the last rank of each group, or all ranks on request.
            The programs of each group were compared.
        own_numbers: Paths of modules in which the programs of a group contain different constants, such as
            a rank's range of the vocabulary. Empty if all ranks of a group run the same program.
        collectives: Collectives that rank 0 calls.
        unused_rules: Rules of the parallel plan that match no module.
        received_bytes: Minimum number of bytes that rank 0 receives per call; None if a size is unknown.
        link_bytes_per_s: Bandwidth to other devices, in one direction; None if it is not known.
    """

    degrees: str
    groups: tuple[RankGroup, ...]
    whole_bytes: int
    traced: tuple[int, ...]
    own_numbers: tuple[str, ...]
    collectives: tuple[Collective, ...]
    unused_rules: tuple[str, ...] = ()
    received_bytes: int | None = None
    link_bytes_per_s: float | None = None

    @property
    def link_seconds(self) -> float | None:
        """Lower bound on the communication time of one call; None if it is not known."""
        if self.received_bytes is None or self.link_bytes_per_s is None:
            return None
        return self.received_bytes / self.link_bytes_per_s

    @property
    def program_count(self) -> int:
        """Number of different programs that the ranks run."""
        return sum(len(group.ranks) if self.own_numbers else 1 for group in self.groups)


def rank_listing(name: str, summary: RankSummary) -> list[str]:
    """Return the summary of a target's ranks, with a row for each kind of collective."""
    cells = [
        (
            f"{found.count} x",
            found.kind,
            "?" if found.bytes is None else bytes_text(found.bytes),
            f"{found.dtype}[{', '.join(found.shape)}]",
            found.module_path,
        )
        for found in summary.collectives
    ]
    rows = layout([[escaped(cell) for cell in row] for row in cells], right=(0,), indent=_INDENT * 2)
    first, *others = rank_lines(name, summary)
    last = [others.pop()] if summary.unused_rules else []
    indented = [f"{_INDENT}{line}" for line in others]
    return [f"  {first}", *indented, *rows, *(f"{_INDENT}{line}" for line in last)]


def rank_lines(name: str, summary: RankSummary) -> list[str]:
    """Return the summary of a target's ranks without the rows for collectives."""
    count = sum(len(group.ranks) for group in summary.groups)
    lines = [f"{name}: {summary.degrees}, {_programs(summary, count)}; traced: {_ranks(summary.traced)}"]
    whole = bytes_text(summary.whole_bytes)
    for group in summary.groups:
        who = "each rank" if len(summary.groups) == 1 else _ranks(group.ranks)
        lines.append(f"{who}: {bytes_text(group.weight_bytes)} of {whole} of weights")
    total = sum(found.count for found in summary.collectives)
    lines.append(f"{plural(total, 'collective')} per call{_least(summary)}:")
    if summary.unused_rules:
        lines.append(f"plan rules that match no module: {', '.join(map(escaped, summary.unused_rules))}")
    return lines


def _least(summary: RankSummary) -> str:
    """Return a clause with the bytes that a rank receives and their minimum time; "" if they are unknown."""
    if summary.received_bytes is None:
        return ""
    seconds, rate = summary.link_seconds, summary.link_bytes_per_s
    text = f", in which a rank receives at least {bytes_text(summary.received_bytes)}"
    if seconds is None or rate is None:
        return text
    return f"{text}, which takes at least {duration_text(seconds)} at {rate / 1e9:,.0f} GB/s"


def _programs(summary: RankSummary, count: int) -> str:
    if summary.program_count == 1:
        return f"one program for all {count} ranks"
    if len(summary.groups) == 1:
        return f"{count} programs, which differ only in constants in {', '.join(summary.own_numbers)}"
    return (
        f"{plural(summary.program_count, 'program')} for {count} ranks, whose weights have different shapes"
    )


def _ranks(ranks: Iterable[int]) -> str:
    found: Sequence[int] = tuple(ranks)
    if len(found) > 2 and found == tuple(range(found[0], found[-1] + 1)):
        return f"ranks {found[0]} to {found[-1]}"
    return f"{'rank' if len(found) == 1 else 'ranks'} {', '.join(map(str, found))}"
