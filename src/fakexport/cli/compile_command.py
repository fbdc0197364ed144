"""`fakexport compile`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fakexport.cli.operator_libraries import load_libraries
from fakexport.cli.options import (
    Archive,
    BoundDevices,
    Debug,
    Libraries,
    Method,
    OldBoundDevices,
    Profiles,
    Trust,
    bound_devices,
)
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_error_line, write_note, write_output, write_report

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from fakexport.deploy import CompiledFile

__all__ = ["compile_command"]

_Form = Literal["aoti", "cpp-project", "executorch", "onnx"]
# The options that only some forms have.
_OPTIONS_OF: dict[_Form, frozenset[str]] = {
    "aoti": frozenset(("--weights", "--target", "--cache")),
    "cpp-project": frozenset(("--cache",)),
    "executorch": frozenset(("--backend",)),
    "onnx": frozenset(("--weights",)),
}


def compile_command(
    archive: Archive,
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="[CHECKPOINT]",
            show_default=False,
            help=("Checkpoint to bind, if ARCHIVE has no weights."),
        ),
    ] = None,
    to: Annotated[_Form, typer.Option("--to", show_default=False, help="Format to compile to.")] = ...,  # type: ignore[assignment]
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUT", show_default=False, help=("File or project folder to write.")
        ),
    ] = ...,  # type: ignore[assignment]
    weights: Annotated[
        Literal["inside", "beside"] | None,
        typer.Option(
            "--weights",
            show_default=False,
            help=("Store weights inside the file, or in a .safetensors file next to it."),
        ),
    ] = None,
    backend: Annotated[
        Literal["portable", "xnnpack"] | None,
        typer.Option(
            "--backend", show_default=False, help=("ExecuTorch backend: portable (default) or xnnpack.")
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="TARGET", show_default=False, help="Devices to compile for."),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", metavar="DIR", show_default=False, help="Folder that caches compiled code."),
    ] = None,
    method: Method = None,
    devices: BoundDevices = None,
    device_map: OldBoundDevices = None,
    trust: Trust = False,
    profiles: Profiles = None,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Compile a program to native code, for edge runtimes, or to ONNX.

    Exit code 0: written. 1: the compiler does not support operators of the program; the diagnostics name them
    and their lines. 2: bad usage, file or environment. Nothing is written unless the exit code is 0.
    """
    devices = bound_devices(devices, device_map)
    given = {"--weights": weights, "--backend": backend, "--target": target, "--cache": cache}
    for option, value in given.items():
        if value is not None and option not in _OPTIONS_OF[to]:
            raise typer.BadParameter(f"--to {to} has no {option}")
    with quiet(is_debug=debug):
        from fakexport.archive import bind, load
        from fakexport.deploy import CompileFailure

        load_libraries(library)
        program = load(archive, method=method, trust=trust)
        if to in ("aoti", "cpp-project") and devices is None:
            options = {"--to": to, **given, "--method": method, "--trust": trust, "--library": library}
            command = _command([archive, checkpoint], {**options, "--profiles": profiles, "-o": output})
            program = _on_target(program, target, command)
        if checkpoint is not None:
            program = bind(program, checkpoint, devices=devices)
        try:
            made = _compiled(program, to, output, weights, backend or "portable", cache, target)
        except CompileFailure as failure:
            made, failed = None, failure.diagnostics
    if made is None:
        from fakexport.report import render_diagnostics

        write_report(render_diagnostics(failed))
        raise typer.Exit(1)
    for note in made.notes:
        write_note(note)
    taken = "from the cache" if made.is_cached else f"in {made.seconds:.1f} s"
    write_output(f"{made.path}: {made.size_bytes:,} bytes, {taken}\n")


def _command(arguments: list[str | None], options: Mapping[str, object]) -> str:
    """Return this call as a shell command for another machine."""
    words = [argument for argument in arguments if argument is not None]
    for option, given in options.items():
        for value in given if isinstance(given, list) else [given]:
            if value is True:
                words.append(option)
            elif value is not None and value is not False:
                words += [option, str(value)]
    return f"pip install fakexport && fakexport compile {shlex.join(words)}"


def _on_target(program: ExportedProgram, target: str | None, command: str) -> ExportedProgram:
    """Return the program on the devices to compile for, before it has weights; refuse missing devices."""
    from fakexport.deploy.aoti import check_devices, on_target

    check_devices(program, target, command=command)
    return on_target(program, target)


def _compiled(
    program: ExportedProgram,
    to: _Form,
    output: Path,
    weights: Literal["inside", "beside"] | None,
    backend: Literal["portable", "xnnpack"],
    cache: Path | None,
    target: str | None,
) -> CompiledFile:
    def report(line: str) -> None:
        write_error_line(f"{line} ...")

    match to:
        case "aoti":
            from fakexport.deploy.aoti import compile_aoti

            return compile_aoti(program, output, weights=weights, target=target, cache=cache, report=report)
        case "cpp-project":
            from fakexport.deploy.cpp_project import write_cpp_project

            return write_cpp_project(program, output, cache=cache, report=report)
        case "executorch":
            from fakexport.deploy.executorch import compile_executorch

            return compile_executorch(program, output, backend=backend, report=report)
        case "onnx":
            from fakexport.deploy.onnx import compile_onnx

            return compile_onnx(program, output, weights=weights or "inside", report=report)
