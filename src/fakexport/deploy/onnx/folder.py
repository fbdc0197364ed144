"""Compile the programs of a bundle to a folder of ONNX files."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

from fakexport.archive import Bundle
from fakexport.error import InvalidValue
from fakexport.files import FileWriteError, new_folder

from ..artifact import CompiledFile, Names, Report, WeightsPlace, refuse_to_overwrite, silent
from .compilation import compile_onnx


def compile_onnx_folder(
    bundle: Bundle,
    folder: str | os.PathLike[str],
    *,
    weights: WeightsPlace = "inside",
    names: Names | None = None,
    opset: int | None = None,
    report: Report | None = None,
) -> CompiledFile:
    """Compile each program of a bundle to the file `METHOD.onnx`; with Optimum's names, `METHOD_model.onnx`.

    Args:
        folder: A new or empty folder.
        weights, names, opset, report: As for `compile_onnx`. Each file has its own weights.

    Raises:
        DeployError: The folder is not empty. The other errors are those of `compile_onnx`. After an error, no
            new files remain.
    """
    started, out = time.monotonic(), Path(folder)
    if out.suffix == ".onnx":
        raise InvalidValue(
            f"{out}: a bundle is compiled to a folder with one file for each program: pass the name of a "
            f"folder, or choose a program with --method {'|'.join(bundle)}"
        )
    refuse_to_overwrite(out)
    say, ending = report or silent, "_model.onnx" if names else ".onnx"
    notes: dict[str, None] = {}
    try:
        with new_folder(out) as new:
            for method, program in bundle.items():
                made = compile_onnx(
                    program,
                    new / f"{method}{ending}",
                    weights=weights,
                    names=names,
                    opset=opset,
                    report=partial(_report, say, method),
                )
                notes |= dict.fromkeys(made.notes)
    except OSError as error:  # The error names a file in the temporary folder, which is already deleted.
        raise FileWriteError(out, error) from error
    return CompiledFile.of(out, sorted(out.iterdir()), started, notes=notes)


def _report(say: Report, method: str, line: str) -> None:
    say(f"{method}: {line}")
