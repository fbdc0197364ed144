"""Open a program in any compiled form, or from an archive."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from torch.export import ExportedProgram

from fakexport.archive import Bundle, MethodManifest, bind, load, load_bundle, method_manifests
from fakexport.archive.weights import CheckpointSource, open_checkpoint
from fakexport.error import InvalidValue
from fakexport.exporting.program import facts_of
from fakexport.files import open_regular, plugins
from fakexport.files.container import ArchiveError, read_container
from fakexport.files.documents import are_divided

from .artifact import Artifact, DeployError
from .loaded_program import LoadedProgram
from .plugin_runtime import open_with_plugin
from .size_ranges import LoadedRanges
from .stages import LoadedStages
from .tensor_files import takes_adapter

CompiledKind = Literal["aoti", "executorch", "onnx", "plugin"]
ArtifactKind = Literal["program"] | CompiledKind
_EXECUTORCH_MARK = b"ET12"
_AOTI_FOLDER = "data/aotinductor/"
_ALONE = "an adapter is bound together with its base model: also pass the checkpoint of the base model"


def open_program(
    path: str | os.PathLike[str],
    checkpoint: CheckpointSource | None = None,
    *,
    method: str | Sequence[str] | None = None,
    devices: str | Mapping[str, str] | None = None,
    is_compiled: bool = False,
    trust: bool = False,
    adapter: str | Path | None = None,
) -> Artifact:
    """Open an archive or a compiled file as a callable.

    Args:
        path: A .pt2 archive or package, a .pte file, or an .onnx file.
        checkpoint: The weights, as for `bind`. Default: the file's own weights.
        method: The program to open from a bundle, or several that divide the sizes of a call among them.
            Default: all programs, if they divide the sizes of a call among them, or if they are the pipeline
            stages of a program, which then run one after the other.
        devices: Mapping of devices, as for `bind`. Only for archives.
        is_compiled: Whether to use `torch.compile`, which compiles in the first call. Only for archives.
        trust: Whether to load native code from the file. The code can do anything, so trust only files that
            you built.
        adapter: A LoRA adapter to bind together with the checkpoint, as for `open_checkpoint`. Ignored for a
            program with adapter inputs; pass the result of `adapter_inputs` to each call instead.

    Returns:
        A callable that takes and returns tensors by name. `signature` lists them.

    Raises:
        ArchiveError, DeployError: The file is rejected.
        BindError, CheckpointError: The weights do not fit, or are rejected.
        WeightsNotBoundError: The program has no weights.
        ValueError: `method`, `devices` or `is_compiled` is passed for a compiled file, or `devices` is passed
            without a checkpoint.
        OSError: The file cannot be read.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> _ = save(program, "model.pt2")
        >>> weights = {"weight": torch.ones(2, 4), "bias": torch.zeros(2)}
        >>> call = open_program("model.pt2", weights)
        >>> call({"input": torch.ones(3, 4)})["output"][0].tolist()
        [4.0, 4.0]
    """
    kind = artifact_kind(path)
    if kind != "program":
        given = {"method": method, "devices": devices, "is_compiled": is_compiled or None}
        if others := [name for name, value in given.items() if value is not None]:
            raise InvalidValue(
                f"{others[0]} applies only to exported programs, but {os.fspath(path)} is compiled"
            )
        if adapter is not None and checkpoint is not None:
            checkpoint = open_checkpoint(checkpoint, adapter=adapter)
        opened = open_artifact(path, kind, checkpoint=checkpoint, trust=trust)
        if adapter is not None and checkpoint is None and not takes_adapter(opened.signature):
            raise InvalidValue(_ALONE)
        return opened
    program: ExportedProgram | Bundle
    one = method if isinstance(method, str) else None
    several = () if method is None or one is not None else tuple(method)
    manifests = method_manifests(path, trust=trust) if one is None else {}
    is_staged = not several and _is_staged(manifests)
    is_divided = are_divided(
        about.sizes for name, about in manifests.items() if name in (several or manifests)
    )
    if is_staged or is_divided or several:
        program = load_bundle(path, methods=several, trust=trust)
        record = facts_of(next(iter(program.values()))).adapter
    else:
        program = load(path, method=one, trust=trust)
        record = facts_of(program).adapter
    if adapter is not None and (record is None or record.mode != "inputs"):
        if checkpoint is None:
            raise InvalidValue(_ALONE)
        checkpoint = open_checkpoint(checkpoint, adapter=adapter)
    if isinstance(program, Bundle):
        if several and not is_divided:
            raise InvalidValue(f"{', '.join(several)} do not divide the sizes of a call among them: pass one")
        opener = LoadedStages if is_staged else LoadedRanges
        return opener(with_weights(program, checkpoint, devices), is_compiled=is_compiled)
    return LoadedProgram(with_weights(program, checkpoint, devices), is_compiled=is_compiled)


Bound = TypeVar("Bound", ExportedProgram, Bundle)


def with_weights(
    program: Bound, checkpoint: CheckpointSource | None, devices: str | Mapping[str, str] | None
) -> Bound:
    """Bind a checkpoint to a program or bundle. Without a checkpoint, return it unchanged."""
    if checkpoint is not None:
        return bind(program, checkpoint, devices=devices)
    if devices is not None:
        raise InvalidValue(
            "devices can be chosen only together with a checkpoint: use `fakexport retarget` to move a "
            "program that already has weights"
        )
    return program


def artifact_kind(path: str | os.PathLike[str]) -> ArtifactKind:
    """Return the kind of a file by content; of ONNX and plugins by name. Any other is a program."""
    with open_regular(path) as file:
        start = file.read_at(0, 8)
    if start[4:8] == _EXECUTORCH_MARK:
        return "executorch"
    if Path(path).suffix == ".onnx":
        return "onnx"
    if Path(path).suffix != ".pt2" and Path(path).suffix[1:] in plugins("runtimes"):
        return "plugin"
    return "aoti" if start[:2] == b"PK" and _is_package(path) else "program"


def open_artifact(
    path: str | os.PathLike[str],
    kind: CompiledKind,
    *,
    checkpoint: CheckpointSource | None = None,
    trust: bool = False,
) -> Artifact:
    """Open a compiled program. `trust` allows native code, which runs as soon as it is loaded."""
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
        case "plugin":
            if not trust:
                raise DeployError(
                    f"{os.fspath(path)} is opened by a plugin, which fakexport does not check; pass --trust "
                    "only for files you built"
                )
            if checkpoint is not None:
                raise InvalidValue(f"{os.fspath(path)} contains its weights: do not pass a checkpoint")
            return open_with_plugin(path, Path(path).suffix[1:])


def _is_staged(manifests: Mapping[str, MethodManifest]) -> bool:
    """Return whether an archive contains all pipeline stages of one program, and nothing else."""
    records = [about.stage for about in manifests.values()]
    found = [(each.stage, each.stages) for each in records if each is not None]
    return bool(found) and found == [(number, len(records)) for number in range(len(records))]


def _is_package(path: str | os.PathLike[str]) -> bool:
    try:
        with read_container(path, trust=True) as archive:
            return any(name.startswith(_AOTI_FOLDER) for name in archive.names)
    except ArchiveError:  # `load` reports what is wrong with the file.
        return False
