"""Loading the operator libraries that the user names, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

__all__ = ["load_libraries"]


def load_libraries(paths: Sequence[Path] | None) -> None:
    """Loads files that register operators, in their order: Python files, and native libraries for torch.

    Both run code of their own, which is why only the command line names them and an archive never does.

    Raises:
        typer.BadParameter: a file is not there, or is no library that this machine and this torch can load.
    """
    if not paths:
        return
    from fakexport.sources import SourceError, load_operator_library

    for path in paths:
        try:
            load_operator_library(path)
        except SourceError as error:
            raise typer.BadParameter(str(error), param_hint="--library") from error
