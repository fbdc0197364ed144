"""Open a compiled program of any format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from fakexport.archive import ArchiveError
from fakexport.archive.container.reader import read_container
from fakexport.files import open_regular
from fakexport.weights import CheckpointSource

from .artifact import Artifact, DeployError

__all__ = ["ArtifactKind", "artifact_kind", "open_artifact"]

ArtifactKind = Literal["program", "aoti", "executorch", "onnx"]
_EXECUTORCH_MARK = b"ET12"
_AOTI_FOLDER = "data/aotinductor/"


def artifact_kind(path: str | os.PathLike[str]) -> ArtifactKind:
    """Return the kind of a file by its content, or by its name for ONNX, which has no magic; default: a
    program.

    Raises:
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        start = file.read_at(0, 8)
    if start[4:8] == _EXECUTORCH_MARK:
        return "executorch"
    if Path(path).suffix == ".onnx":
        return "onnx"
    return "aoti" if start[:2] == b"PK" and _is_package(path) else "program"


def open_artifact(
    path: str | os.PathLike[str],
    kind: Literal["aoti", "executorch", "onnx"],
    *,
    checkpoint: CheckpointSource | None = None,
    trust: bool = False,
) -> Artifact:
    """Open a compiled program.

    Args:
        path: The file.
        kind: As returned by `artifact_kind`.
        checkpoint: The weights, if they are neither inside nor next to it.
        trust: Whether native code may be loaded from the file; it runs on load.
    Raises:
        DeployError: it is refused: damaged, of another kind, without its weights, or native code that is not
            trusted.
        ArchiveError: a package is damaged, or was not written by fakexport.
        CheckpointError, BindError: the checkpoint is refused, or does not fit.
    """
    match kind:
        case "aoti":
            if not trust:
                raise DeployError(
                    f"{os.fspath(path)} contains native code that runs on load; pass --trust only "
                    "for files you built"
                )
            from .aoti import open_aoti

            return open_aoti(path, checkpoint=checkpoint)
        case "executorch":
            from .executorch import open_executorch

            return open_executorch(path, checkpoint=checkpoint)
        case "onnx":
            from .onnx import open_onnx

            return open_onnx(path, checkpoint=checkpoint)


def _is_package(path: str | os.PathLike[str]) -> bool:
    try:
        with read_container(path, trust=True) as archive:
            return any(name.startswith(_AOTI_FOLDER) for name in archive.names)
    except ArchiveError:  # What reads it as a program says what is wrong.
        return False
