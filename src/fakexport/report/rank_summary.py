"""What a check found out about the programs of the ranks of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fakexport.diagnostics import escaped
from fakexport.report.quantity import bytes_text, duration_text, plural
from fakexport.report.table import layout

if TYPE_CHECKING:
    from fakexport.program import Collective

_INDENT = "    "


@dataclass(frozen=True)
class RankGroup:
    """Ranks, from 0, whose weights have the same shapes, and the bytes of the weights of one of them."""

    ranks: tuple[int, ...]
    weight_bytes: int


@dataclass(frozen=True)
class RankSummary:
    """The ranks of one target.

    Args:
        degrees: Of parallelism: `tp=8`.
        groups: By shapes, that of rank 0 first.
        whole_bytes: The same of the whole model, as one device would hold it.
        traced: The traced and compared ranks: rank 0, the last of its shapes, one of each other group.
        own_numbers: Modules whose nodes have numbers of their own on each rank, such as a range of the
            vocabulary; none: ranks of a group run one program.
        collectives: Of rank 0.
        unused_rules: Rules of the plan that name no module of the model.
        received_bytes: What rank 0 receives in one call at least; None if a size is unknown.
        link_bytes_per_s: Bandwidth of the device to its peers, in one direction; None where the profile has
            none.
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
        """The time that the exchanges of one call take at least; None where it is not known."""
        if self.received_bytes is None or self.link_bytes_per_s is None:
            return None
        return self.received_bytes / self.link_bytes_per_s

    @property
    def program_count(self) -> int:
        """How many different programs the ranks run."""
        return sum(len(group.ranks) if self.own_numbers else 1 for group in self.groups)


def rank_listing(name: str, summary: RankSummary) -> list[str]:
    """Return what a report says of the ranks of a target, with a row for each kind of exchange."""
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
    """Return the same without the rows."""
    count = sum(len(group.ranks) for group in summary.groups)
    lines = [f"{name}: {summary.degrees}, {_programs(summary, count)}; traced: {_ranks(summary.traced)}"]
    whole = bytes_text(summary.whole_bytes)
    for group in summary.groups:
        who = "each rank" if len(summary.groups) == 1 else _ranks(group.ranks)
        lines.append(f"{who}: {bytes_text(group.weight_bytes)} of {whole} of weights")
    total = sum(found.count for found in summary.collectives)
    lines.append(f"{plural(total, 'collective')} per call{_least(summary)}:")
    if summary.unused_rules:
        lines.append(f"rules that match no module: {', '.join(map(escaped, summary.unused_rules))}")
    return lines


def _least(summary: RankSummary) -> str:
    """Return how long the exchanges take at the sizes of the example inputs, as far as it is known."""
    if summary.received_bytes is None:
        return ""
    seconds, rate = summary.link_seconds, summary.link_bytes_per_s
    text = f", in which a rank receives {bytes_text(summary.received_bytes)} or more"
    if seconds is None or rate is None:
        return text
    return f"{text}: at least {duration_text(seconds)} at {rate / 1e9:,.0f} GB/s"


def _programs(summary: RankSummary, count: int) -> str:
    if summary.program_count == 1:
        return f"one program for all {count} ranks"
    if len(summary.groups) == 1:
        return f"{count} programs, which differ only in numbers of {', '.join(summary.own_numbers)}"
    return f"{plural(summary.program_count, 'program')} for {count} ranks, whose weights differ in shape"


def _ranks(ranks: Iterable[int]) -> str:
    found: Sequence[int] = tuple(ranks)
    if len(found) > 2 and found == tuple(range(found[0], found[-1] + 1)):
        return f"ranks {found[0]} to {found[-1]}"
    return f"{'rank' if len(found) == 1 else 'ranks'} {', '.join(map(str, found))}"
