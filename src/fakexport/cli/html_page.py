"""`--html FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from fakexport.report import Document


def check_place(path: Path | None) -> Path | None:
    """Return the place from the root; one that no file can be written to is refused before the work."""
    if path is not None:
        if path.is_dir():
            raise typer.BadParameter(f"{path} is a folder: name a file, such as {path / 'report.html'}")
        if not path.parent.is_dir():
            raise typer.BadParameter(f"{path}: there is no folder {path.parent}")
    return None if path is None else path.absolute()


def write_page(document: Document, path: Path) -> None:
    """Write a document as a page."""
    from fakexport.files import new_file
    from fakexport.report import render_page

    with new_file(path) as file:
        file.write(render_page(document).encode())
