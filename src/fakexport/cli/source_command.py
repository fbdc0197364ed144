"""`fakexport source`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fakexport.cli.isolated_work import Show, isolated
from fakexport.cli.options import Archive, Debug, Libraries, Method, Trust
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_error_line, write_output


def source_command(
    archive: Archive,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Python file (.py) to write."),
    ] = None,
    method: Method = None,
    trust: Trust = False,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Write a program as Python source to read, run and step through.

    Without --output, the text goes to stdout and the file of large constants is not written.
    """

    def written(_: Show | None) -> tuple[str, int | None]:
        from fakexport.archive import load
        from fakexport.python_source import source, write_source

        program = load(archive, method=method, trust=trust)
        made = source(program) if output is None else write_source(program, output)
        return made.text, None if made.constants is None else len(made.constants)

    with quiet(is_debug=debug):
        text, constant_bytes = isolated(written, library, runs_code=trust)
    if output is None:
        write_output(text)
        return
    lines, classes = text.count("\n"), text.count("\nclass ")
    write_error_line(f"{output}: {lines:,} lines, {classes:,} classes")
    if constant_bytes is not None:
        beside = output.with_suffix(".safetensors")
        write_error_line(f"{beside}: {constant_bytes:,} bytes of constants")
