"""Write the project: the compiled program, its weights, and the C++ sources that run it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path

from torch.export import ExportedProgram

from fakexport.files import FileWriteError

from ..aoti import compile_aoti
from ..artifact import CompiledFile, CompileFailure, DeployError, Report
from ..signature import Signature
from .findings import findings_of_program
from .readme import readme

_TEMPLATE = Path(__file__).with_name("template")
_PACKAGE, _README = "model.aoti.pt2", "README.md"


def write_cpp_project(
    program: ExportedProgram,
    folder: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    report: Report | None = None,
) -> CompiledFile:
    """Compile a program and write it with a CMake project that runs it without Python.

    The sources are the same for all programs, since the package describes its inputs, outputs and weights.
    They belong to the user from then on.

    Args:
        program: With or without weights; not changed. The weights of a weight-less one are passed when it is
            run, in any safetensors file, or shards, that contain them under the program's names.
        folder: Created; may exist if empty. It gets `CMakeLists.txt`, `src/`, `README.md`,
            `model.aoti.pt2`, and the weights in `model.aoti.safetensors`.
        cache, report: As for `compile_aoti`.
    Returns:
        What was written; `path` is the folder.
    Raises:
        DeployError: the folder is not empty, or `compile_aoti` refuses the program.
        CompileFailure: Inductor cannot compile the program, or it calls operators of Python.
        FileWriteError: it cannot be written. After an error, nothing new is left behind.

    Example:
        >>> import torch; from fakexport.capture import export
        >>> program = export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> written = write_cpp_project(program, "/tmp/linear_cpp")  # doctest: +SKIP
    """
    target = Path(folder)
    _refuse_to_overwrite(target)
    if findings := tuple(findings_of_program(program)):
        raise CompileFailure(findings)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name[:200]}.") as temporary:
            new = Path(temporary, "project")
            shutil.copytree(_TEMPLATE, new, copy_function=shutil.copyfile)
            text = readme((new / _README).read_text("utf-8"), Signature.of(program))
            (new / _README).write_text(text, "utf-8")
            compiled = compile_aoti(program, new / _PACKAGE, weights="beside", cache=cache, report=report)
            new.replace(target)
    except OSError as error:  # Its file is in the folder that is gone.
        raise FileWriteError(target, error) from error
    files = tuple(sorted(path for path in target.rglob("*") if path.is_file()))
    return dataclasses.replace(
        compiled,
        path=target,
        files=files,
        size_bytes=sum(file.stat().st_size for file in files),
    )


def _refuse_to_overwrite(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise DeployError(f"{target} is not a folder: pass a new one")
    if target.exists() and any(target.iterdir()):
        raise DeployError(f"{target} is not empty: pass a new folder")
    if not target.absolute().parent.is_dir():
        raise DeployError(f"{target.parent}: no such folder")
