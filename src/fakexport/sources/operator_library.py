"""Loading a library of operators: a file or module of Python, or native code for torch."""

from __future__ import annotations

import re
from contextlib import chdir
from pathlib import Path

import torch

from fakexport.files import open_regular
from fakexport.sources.python_file import import_file, import_module, importable
from fakexport.sources.source_error import SourceError

_FILES = (".py", ".so", ".dylib", ".dll", ".pyd")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def load_operator_library(library: str) -> None:
    """Register the operators of a file or module, by running it.

    Args:
        library: A file, or a module of Python that is installed or in the working directory,
            `transformers.integrations.moe`. A `.py` file is imported, next to the modules of its folder; any
            other goes to `torch.ops.load_library`.
    Raises:
        SourceError: there is no such file or module, or it cannot be loaded here.
    """
    path = Path(library)
    with chdir("."):  # One that leaves the working directory moves nothing that is read or written later.
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
    """Return whether the path is of a file; a folder may be a package of Python.

    Raises:
        SourceError: it is of something else, or cannot be read.
    """
    try:
        open_regular(path).close()
    except (FileNotFoundError, IsADirectoryError):
        return False
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from error
    return True


def _load_native(path: Path) -> None:
    try:
        # Absolute: the system's loader looks for a bare name in its own folders.
        torch.ops.load_library(str(path.absolute()))
    except OSError as error:
        reason = str(error.__cause__ or error).removeprefix(f"{path.absolute()}: ")
        raise SourceError(f"{path} cannot be loaded: {reason}") from error
