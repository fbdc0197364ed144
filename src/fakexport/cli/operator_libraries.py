"""Loading the operator libraries that the user names, and no others."""

from __future__ import annotations

from collections.abc import Iterable

import typer

__all__ = ["load_libraries"]


def load_libraries(libraries: Iterable[str] | None) -> None:
    """Loads what registers operators, in its order: Python files and modules, and native libraries for torch.

    Both run code of their own, which is why the user names them, and an archive never does.

    Raises:
        typer.BadParameter: one is not there, or is no library that this machine and this torch can load.
    """
    named = list(libraries or ())
    if not named:
        return
    from fakexport.sources import SourceError, load_operator_library

    for library in named:
        try:
            load_operator_library(library)
        except SourceError as error:
            raise typer.BadParameter(str(error), param_hint="--library") from error
