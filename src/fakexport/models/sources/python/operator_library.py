"""Load an operator library: a Python file or module, or a native library for torch."""

from __future__ import annotations

import re
from contextlib import chdir
from pathlib import Path

import torch

from fakexport.files import open_regular
from fakexport.models.sources.python.python_file import import_file, import_module, importable
from fakexport.models.sources.source_error import SourceError

_FILES = (".py", ".so", ".dylib", ".dll", ".pyd")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def load_operator_library(library: str) -> None:
    """Register the operators of a file or module by running it.

    Args:
        library: A file, or a Python module such as `transformers.integrations.moe` that is installed or in
            the working directory. A `.py` file is imported with its folder on the import path. Any other file
            is loaded with `torch.ops.load_library`.
    Raises:
        SourceError: the file or module does not exist, or cannot be loaded here.
    """
    path = Path(library)
    with chdir(
        "."
    ):  # The library may change the working directory, which must not affect later reads and writes.
        if not _is_file(path):
            if "/" in library or path.suffix in _FILES or not _MODULE.fullmatch(library):
                raise SourceError(f"{library}: no such file")
            with importable(Path.cwd()):
                import_module(library)
        elif path.suffix == ".py":
            with importable(path.absolute().parent):
                import_file(path)
        else:
            _load_native(path)


def _is_file(path: Path) -> bool:
    """Return whether the path is a file, not a folder, which may be a Python package."""
    try:
        open_regular(path).close()
    except (FileNotFoundError, IsADirectoryError):
        return False
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from error
    return True


def _load_native(path: Path) -> None:
    try:
        # Use the absolute path, because the system's loader searches only its own folders for a bare name.
        torch.ops.load_library(str(path.absolute()))
    except OSError as error:
        reason = str(error.__cause__ or error).removeprefix(f"{path.absolute()}: ")
        raise SourceError(f"{path} cannot be loaded: {reason}") from error
