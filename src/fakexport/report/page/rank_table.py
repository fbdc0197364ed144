"""The ranks of a model, as parts of a page."""

from __future__ import annotations

from collections.abc import Iterator

from fakexport.report.page.document import Cell, Column, Items, Part, Row, Table
from fakexport.report.quantity import bytes_text
from fakexport.report.rank_summary import RankSummary, rank_lines


def rank_parts(name: str, summary: RankSummary) -> Iterator[Part]:
    """Yield what a report says of the ranks of a target, and a table of what they exchange.

    Args:
        name: The target.
        summary: Its ranks.
    """
    yield Items(tuple(line.strip() for line in rank_lines(name, summary)))
    columns = ("count", "kind", "bytes each", "tensor of a rank", "module")
    rows = tuple(
        Row(
            (
                Cell(f"{found.count:,}", found.count),
                Cell(found.kind),
                Cell("?" if found.bytes is None else bytes_text(found.bytes), found.bytes),
                Cell(f"{found.dtype}[{', '.join(found.shape)}]"),
                Cell(found.module_path),
            )
        )
        for found in summary.collectives
    )
    yield Table(f"Collectives of one call on {name}", tuple(map(Column, columns)), rows)
