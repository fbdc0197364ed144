"""`fakexport source`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fakexport.cli.options import Archive, Debug, Libraries, Method, Trust, load_libraries
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
    with quiet(is_debug=debug):
        from fakexport.archive import load
        from fakexport.python_source import source, write_source

        load_libraries(library)
        program = load(archive, method=method, trust=trust)
        written = source(program) if output is None else write_source(program, output)
    if output is None:
        write_output(written.text)
        return
    lines, classes = written.text.count("\n"), written.text.count("\nclass ")
    write_error_line(f"{output}: {lines:,} lines, {classes:,} classes")
    if written.constants is not None:
        beside = output.with_suffix(".safetensors")
        write_error_line(f"{beside}: {len(written.constants):,} bytes of constants")
