"""Compile a program to any of the forms that it is deployed in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from torch.export import ExportedProgram

from fakexport._forms import OPTIONS_OF, Form
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.archive import Bundle, bind, load, load_bundle
from fakexport.error import InvalidValue
from fakexport.weights import CheckpointSource

from .artifact import CompiledFile, Report, WeightsPlace, silent
from .opening import with_weights


@one_at_a_time
def compile(
    program: ExportedProgram | Bundle | str | os.PathLike[str],
    path: str | os.PathLike[str],
    checkpoint: CheckpointSource | None = None,
    *,
    to: Form = "aoti",
    devices: str | Mapping[str, str] | None = None,
    weights: WeightsPlace | None = None,
    backend: Literal["portable", "xnnpack"] | None = None,
    target: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    command: str | None = None,
    on_progress: Report | None = None,
) -> CompiledFile:
    """Compile a program to native code, for edge runtimes, or to ONNX, as `fakexport compile` does.

    Args:
        program: A program, or the path of an archive. Not changed. For `cpp-project` also a bundle.
        path: The file to write; for `cpp-project` the folder.
        checkpoint: The weights, as for `bind`. Default: those of the program.
        to: `aoti`, a .pt2 package of native code; `cpp-project`, such a package with a C++ program that runs
            it; `executorch`, a .pte file; `onnx`, an .onnx file.
        devices: Device to device, as for `bind`.
        weights: Of `aoti` and `onnx`: `inside` the file, or in a .safetensors file `beside` it.
        backend: Of `executorch`. Default: `portable`.
        target: The topology to compile for, of `aoti`. It must be here. Default: the program's devices.
        cache: A folder that keeps what was compiled, of `aoti` and `cpp-project`.
        command: What to run on a machine that has the devices, for the error where they are missing.
        on_progress: Called with a line at the start of each step.
    Returns:
        What was written, its size in bytes and the seconds that it took.
    Raises:
        CompileFailure: the compiler cannot take operators of the program; `diagnostics` says which and where.
        DeployError: the devices are not here, or a package that the form needs refuses.
        BindError, CheckpointError, ArchiveError: as for `bind`.
        ValueError: an option that the form lacks, `devices` without a checkpoint, or a bad file name.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2).eval(), (torch.zeros(3, 4),))
        >>> weights = {"weight": torch.ones(2, 4), "bias": torch.zeros(2)}
        >>> compile(program, "linear.onnx", weights, to="onnx").path.name
        'linear.onnx'
    """
    if to not in OPTIONS_OF:
        raise InvalidValue(f"cannot compile to {to!r}; there are {', '.join(OPTIONS_OF)}")
    given = {"weights": weights, "backend": backend, "target": target, "cache": cache}
    for option, value in given.items():
        if value is not None and option not in OPTIONS_OF[to]:
            raise InvalidValue(f"{to} has no option {option}")
    folder = None if cache is None else Path(cache)
    if to == "cpp-project" and (bundle := _bundle(program)) is not None:
        from .cpp_project import write_cpp_project

        if checkpoint is not None:
            bundle = bind(bundle, checkpoint, devices=devices)
        return write_cpp_project(bundle, path, cache=folder, report=on_progress)
    if isinstance(program, Bundle):
        raise InvalidValue(f"a bundle is compiled to cpp-project only: pass one of its programs to {to}")
    opened = program if isinstance(program, ExportedProgram) else load(program)
    if to in ("aoti", "cpp-project") and devices is None:
        opened = _on_target(opened, target, command)
    opened = with_weights(opened, checkpoint, devices)
    return _compiled(opened, to, Path(path), weights, backend or "portable", folder, target, on_progress)


def _bundle(program: ExportedProgram | Bundle | str | os.PathLike[str]) -> Bundle | None:
    """Return a bundle of several programs; None if it is one program."""
    if isinstance(program, ExportedProgram):
        return None
    bundle = program if isinstance(program, Bundle) else load_bundle(program)
    return bundle if len(bundle) > 1 or isinstance(program, Bundle) else None


def _on_target(program: ExportedProgram, target: str | None, command: str | None) -> ExportedProgram:
    """The program on the devices to compile for, before it has weights; refuses those that are not here."""
    from .aoti import check_devices, on_target

    check_devices(program, target, command=command)
    return on_target(program, target)


def _compiled(
    program: ExportedProgram,
    to: Form,
    path: Path,
    weights: WeightsPlace | None,
    backend: Literal["portable", "xnnpack"],
    cache: Path | None,
    target: str | None,
    on_progress: Report | None,
) -> CompiledFile:
    """Each form needs a package of its own, which is imported only here."""
    report = on_progress or silent
    match to:
        case "aoti":
            from .aoti import compile_aoti

            return compile_aoti(program, path, weights=weights, target=target, cache=cache, report=report)
        case "cpp-project":
            from .cpp_project import write_cpp_project

            return write_cpp_project(program, path, cache=cache, report=report)
        case "executorch":
            from .executorch import compile_executorch

            return compile_executorch(program, path, backend=backend, report=report)
        case "onnx":
            from .onnx import compile_onnx

            return compile_onnx(program, path, weights=weights or "inside", report=report)
