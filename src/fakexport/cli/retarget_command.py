"""`fakexport retarget`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli.isolated_work import Show, isolated
from fakexport.cli.options import Archive, Debug, Libraries, Method, Trust
from fakexport.cli.project_file import Profiles
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_note, write_output, write_report

if TYPE_CHECKING:
    from fakexport.diagnostics import Diagnostic


def retarget_command(
    archive: Archive,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Archive (.pt2) to write."),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FROM=TO",
            help=(
                "Device to device, cpu=cuda:0; module to device, fc1=cuda:0,fc2=cuda:1; or one "
                "device for all."
            ),
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TOPOLOGY", help="Devices to move to, such as H100. Default: a common model of each kind."
        ),
    ] = None,
    method: Method = None,
    trust: Trust = False,
    profiles: Profiles = None,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Move an exported program to other devices, and verify with fake tensors that it runs there.

    Exit code 0: written. 1: operators of the program fail on the new devices; nothing is written, and the
    diagnostics name them and their lines. 2: the map or a file is refused.
    """

    def written(_: Show | None) -> tuple[tuple[Diagnostic, ...], tuple[str, ...], tuple[str, ...]]:
        from fakexport.archive import load, save
        from fakexport.program import RetargetError, retargeted

        program = load(archive, method=method, trust=trust)
        try:
            made = retargeted(program, to, topology=target)
        except RetargetError as error:
            return error.diagnostics, (), ()
        save(made.program, output)
        return (), (*made.unproven, *made.notes), tuple(made.devices)

    with quiet(is_debug=debug):
        failed, notes, devices = isolated(written, library, runs_code=trust)
    if failed:
        from fakexport.report import render_diagnostics

        write_report(render_diagnostics(failed))
        raise typer.Exit(1)
    for sentence in notes:
        write_note(sentence)
    write_output(f"{output}: {output.stat().st_size:,} bytes, on {', '.join(devices)}\n")
