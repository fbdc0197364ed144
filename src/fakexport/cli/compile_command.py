"""`fakexport compile`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fakexport.cli import options
from fakexport.cli.isolated_work import Show, UserCode
from fakexport.cli.progress_display import lines_on_stderr
from fakexport.cli.project_file import Profiles
from fakexport.cli.streams import write_failed, write_note, write_output
from fakexport.deploy import OPTIONS_OF, check_form

if TYPE_CHECKING:
    from fakexport.rules.diagnostics import Diagnostic


@options.grouped_options
def compile_command(
    archive: options.Archive,
    checkpoint: options.OptionalCheckpoint = None,
    to: Annotated[
        str,
        typer.Option(
            metavar=f"<{'|'.join(OPTIONS_OF)}>",
            help="Runtime to compile for: native code by AOTInductor, a C++ project around it, "
            "ExecuTorch (.pte), or ONNX; or the name of a runtime of an installed package.",
        ),
    ] = ...,  # type: ignore[assignment]
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="Write this file, or this folder for cpp-project and for all programs of a bundle.",
        ),
    ] = ...,  # type: ignore[assignment]
    weights: Annotated[
        Literal["inside", "beside"] | None,
        typer.Option(
            help="For aoti and onnx: store the weights inside the file (default), or in a .safetensors "
            "file next to it."
        ),
    ] = None,
    names: Annotated[
        Literal["optimum"] | None,
        typer.Option(help="For onnx: name inputs, outputs and dynamic axes as Optimum does."),
    ] = None,
    opset: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=18,
            help="For onnx: version of the operators. Default: the version that torch chooses.",
        ),
    ] = None,
    backend: Annotated[
        Literal["portable", "xnnpack"] | None,
        typer.Option(help="For executorch: `portable` kernels (default) or `xnnpack`."),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            help="For native code: compile for these devices, such as `cpu` or `H100`, even if this machine "
            "lacks them. Repeatable: one package for several GPUs. Default: the program's devices.",
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="For native code: reuse compiled code from this folder, and store new code there.",
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="For aoti: choose the configuration of each Triton kernel by timing it on this machine's "
            "GPU.",
        ),
    ] = False,
    method: options.Method = None,
    devices: options.BoundDevices = None,
    trust: options.Trust = False,
    profiles: Profiles = None,
    *,
    code: UserCode,
) -> None:
    """Compile a program to native code, for edge runtimes, or to ONNX.

    Exit code 0: written. 1: the compiler does not support operators of the program; the diagnostics name the
    operators and their lines. 2: bad usage, file or environment. With 1 and 2, nothing is written.
    """
    check_form(to)
    given = {
        "--weights": weights,
        "--names": names,
        "--opset": opset,
        "--backend": backend,
        "--target": target or None,
        "--cache": cache,
        "--tune": tune or None,
    }
    for option, value in given.items():
        if value is not None and option.removeprefix("--") not in OPTIONS_OF.get(to, ()):
            raise typer.BadParameter(f"{option} does not apply to --to {to}")

    def compiled(on_progress: Show | None = None) -> tuple[tuple[Diagnostic, ...], tuple[str, ...], str]:
        from fakexport.deploy import CompileFailure, compile, program_to_compile

        program = program_to_compile(archive, to, method=method, trust=trust)
        asked = {"--to": to, **given, "--method": method, "--trust": trust, "--library": code.libraries}
        try:
            made = compile(
                program,
                output,
                checkpoint,
                to=to,
                devices=devices,
                weights=weights,
                names=names,
                opset=opset,
                backend=backend,
                target=target or None,
                cache=cache,
                tune=tune,
                command=_command([archive, checkpoint], {**asked, "--profiles": profiles, "-o": output}),
                on_progress=on_progress,
            )
        except CompileFailure as failure:
            return failure.diagnostics, (), ""
        taken = "reused from the cache" if made.is_cached else f"compiled in {made.seconds:.1f} s"
        return (), made.notes, f"{made.path}: {made.size_bytes:,} bytes, {taken}\n"

    with lines_on_stderr(is_shown=not code.no_progress) as show:
        failed, notes, text = code.run(compiled, runs_code=trust, on_progress=show)
    if failed:
        write_failed(failed)
    for note in notes:
        write_note(note)
    write_output(text)


def _command(arguments: list[str | None], asked: Mapping[str, object]) -> str:
    """Return this command as a shell command that can be run on a different machine."""
    words = [argument for argument in arguments if argument is not None]
    for option, given in asked.items():
        for value in given if isinstance(given, list) else [given]:
            if value is True:
                words.append(option)
            elif value is not None and value is not False:
                words += [option, str(value)]
    return f"fakexport compile {shlex.join(words)}"
