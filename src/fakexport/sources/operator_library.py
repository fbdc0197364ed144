"""Loading a library of operators: of Python, or native for torch."""

from __future__ import annotations

from pathlib import Path

import torch

from fakexport.sources.python_file import import_file, importable
from fakexport.sources.source_error import SourceError

__all__ = ["load_operator_library"]


def load_operator_library(path: Path) -> None:
    """Registers the operators of a file, by running it.

    Args:
        path: A `.py` file is imported, beside the modules of its folder; any other goes to
            `torch.ops.load_library`.
    Raises:
        SourceError: there is no such file, or it cannot be loaded here.
    """
    if not path.is_file():
        raise SourceError(f"{path}: no such file")
    if path.suffix == ".py":
        with importable(path.absolute().parent):
            import_file(path)
        return
    try:
        # Absolute: the system's loader looks for a bare name in its own folders.
        torch.ops.load_library(str(path.absolute()))
    except OSError as error:
        reason = str(error.__cause__ or error).removeprefix(f"{path.absolute()}: ")
        raise SourceError(f"{path} cannot be loaded: {reason}") from error
