"""Load the operator libraries that the user names, and no others."""

from __future__ import annotations

from collections.abc import Iterable

import typer


def load_libraries(libraries: Iterable[str] | None) -> None:
    """Load what registers operators, in the given order: Python files, modules and native torch libraries.

    All of them run code, so the user names them, never an archive.

    Raises:
        typer.BadParameter: one is missing, or cannot be loaded with this torch on this machine.
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
