"""Moves between devices as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fakexport.report.page.document import Cell, Column, Row, Table
from fakexport.report.quantity import bytes_text
from fakexport.report.transfer_listing import place_text, route_text

if TYPE_CHECKING:
    from fakexport.program import Transfer

_COLUMNS = (
    Column("route", is_choice=True),
    Column("position"),
    Column("bytes"),
    Column("tensor"),
    Column("operator", is_choice=True),
    Column("module"),
    Column("place"),
)


def transfer_table(caption: str, transfers: Iterable[Transfer]) -> Table:
    """Return a row per transfer; bytes of symbolic sizes are those of the example inputs."""
    return Table(caption, _COLUMNS, tuple(map(_row, transfers)))


def _row(transfer: Transfer) -> Row:
    size = "?" if transfer.bytes is None else bytes_text(transfer.bytes)
    if transfer.bytes_expression:
        size += f" ({transfer.bytes_expression})"
    cells = (
        Cell(route_text(transfer)),
        Cell(f"{transfer.index:,}", transfer.index),
        Cell(size, transfer.bytes),
        Cell(f"{transfer.dtype}[{', '.join(transfer.shape)}]"),
        Cell(transfer.operator),
        Cell(transfer.module_path),
        Cell(place_text(transfer.span)),
    )
    return Row(cells)
