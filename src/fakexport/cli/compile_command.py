"""`fakexport compile`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fakexport._forms import OPTIONS_OF, Form
from fakexport.cli.isolated_work import Show, isolated
from fakexport.cli.options import (
    Archive,
    BoundDevices,
    Debug,
    Libraries,
    Method,
    OptionalCheckpoint,
    Trust,
)
from fakexport.cli.project_file import Profiles
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_error_line, write_note, write_output, write_report

if TYPE_CHECKING:
    from fakexport.diagnostics import Diagnostic


def compile_command(
    archive: Archive,
    checkpoint: OptionalCheckpoint = None,
    to: Annotated[Form, typer.Option("--to", help="Format to compile to.")] = ...,  # type: ignore[assignment]
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="OUT", help="File or project folder to write."),
    ] = ...,  # type: ignore[assignment]
    weights: Annotated[
        Literal["inside", "beside"] | None,
        typer.Option(
            "--weights", help="Store weights inside the file, or in a .safetensors file next to it."
        ),
    ] = None,
    backend: Annotated[
        Literal["portable", "xnnpack"] | None,
        typer.Option("--backend", help="ExecuTorch backend: portable (default) or xnnpack."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="TARGET", help="Devices to compile for."),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", metavar="DIR", help="Folder that caches compiled code."),
    ] = None,
    method: Method = None,
    devices: BoundDevices = None,
    trust: Trust = False,
    profiles: Profiles = None,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Compile a program to native code, for edge runtimes, or to ONNX.

    Exit code 0: written. 1: the compiler does not support operators of the program; the diagnostics name them
    and their lines. 2: bad usage, file or environment. Nothing is written unless the exit code is 0.
    """
    given = {"--weights": weights, "--backend": backend, "--target": target, "--cache": cache}
    for option, value in given.items():
        if value is not None and option.removeprefix("--") not in OPTIONS_OF[to]:
            raise typer.BadParameter(f"--to {to} has no {option}")

    def compiled(on_progress: Show | None) -> tuple[tuple[Diagnostic, ...], tuple[str, ...], str]:
        from torch.export import ExportedProgram

        from fakexport.archive import Bundle, load, load_bundle
        from fakexport.deploy import CompileFailure, compile

        # Prefill and decode become one project.
        program: Bundle | ExportedProgram | None = None
        if to == "cpp-project" and method is None:
            bundle = load_bundle(archive, trust=trust)
            program = bundle if len(bundle) > 1 else None
        program = program or load(archive, method=method, trust=trust)
        options = {"--to": to, **given, "--method": method, "--trust": trust, "--library": library}
        try:
            made = compile(
                program,
                output,
                checkpoint,
                to=to,
                devices=devices,
                weights=weights,
                backend=backend,
                target=target,
                cache=cache,
                command=_command([archive, checkpoint], {**options, "--profiles": profiles, "-o": output}),
                on_progress=on_progress,
            )
        except CompileFailure as failure:
            return failure.diagnostics, (), ""
        taken = "from the cache" if made.is_cached else f"in {made.seconds:.1f} s"
        return (), made.notes, f"{made.path}: {made.size_bytes:,} bytes, {taken}\n"

    with quiet(is_debug=debug):
        failed, notes, text = isolated(
            compiled, library, runs_code=trust, on_progress=lambda line: write_error_line(f"{line} ...")
        )
    if failed:
        from fakexport.report import render_diagnostics

        write_report(render_diagnostics(failed))
        raise typer.Exit(1)
    for note in notes:
        write_note(note)
    write_output(text)


def _command(arguments: list[str | None], options: Mapping[str, object]) -> str:
    """Return this call as a shell command for another machine."""
    words = [argument for argument in arguments if argument is not None]
    for option, given in options.items():
        for value in given if isinstance(given, list) else [given]:
            if value is True:
                words.append(option)
            elif value is not None and value is not False:
                words += [option, str(value)]
    return f"fakexport compile {shlex.join(words)}"
