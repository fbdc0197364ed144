"""Write a program as a Python file."""

from __future__ import annotations

import os
from pathlib import Path

from torch.export import ExportedProgram

from fakexport.error import InvalidValue
from fakexport.files import new_file

from .source import PythonSource, source


def write_source(program: ExportedProgram, path: str | os.PathLike[str]) -> PythonSource:
    """Write a program as a Python file, and the constants that are too large for the text next to it.

    Args:
        program: As for `source`.
        path: The file: `program.py`. Constants go to `program.safetensors`. An existing file is replaced
            when the new one is complete.
    Returns:
        What was written.
    Raises:
        PythonSourceError: the program cannot be written as Python source.
        ValueError: the file would be called `.safetensors`.
        FileWriteError: it cannot be written.

    Example:
        >>> import torch; from fakexport.capture import export
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> _ = write_source(program, "/tmp/linear.py")
    """
    target = Path(path)
    if target.suffix == ".safetensors":
        raise InvalidValue(f"{target}: choose another suffix; .safetensors is for the file of constants")
    written = source(program)
    if written.constants is not None:
        with new_file(target.with_suffix(".safetensors")) as file:
            file.write(written.constants)
    with new_file(target) as file:
        file.write(written.text.encode())
    return written
