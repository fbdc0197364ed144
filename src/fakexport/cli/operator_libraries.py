"""Loading the operator libraries that the user names, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

__all__ = ["load_libraries"]

_OPTION = "--library"


def load_libraries(paths: Sequence[Path] | None) -> None:
    """Loads files that register operators, in their order: Python files, and native libraries for torch.

    Both run code of their own, which is why only the command line names them and an archive never does.

    Args:
        paths: `.py` files are imported, beside the modules of their folder; all others go to
            `torch.ops.load_library`.
    Raises:
        typer.BadParameter: a file is not there, or is no library that this machine and this torch can load.
        SourceError: a Python file cannot be imported.
    """
    for path in paths or ():
        if not path.is_file():
            raise typer.BadParameter(f"{path}: no such file", param_hint=_OPTION)
        if path.suffix == ".py":
            _import(path)
        else:
            _load(path)


def _import(path: Path) -> None:
    from fakexport.sources.python_file import import_file, importable

    with importable(path.absolute().parent):
        import_file(path)


def _load(path: Path) -> None:
    import torch

    try:
        # Absolute: the system's loader looks for a bare name in its own folders.
        torch.ops.load_library(str(path.absolute()))
    except OSError as error:
        reason = str(error.__cause__ or error).removeprefix(f"{path.absolute()}: ")
        raise typer.BadParameter(f"{path} cannot be loaded: {reason}", param_hint=_OPTION) from error
