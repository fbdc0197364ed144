"""`fakexport bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fakexport.cli.isolated_work import Show, isolated
from fakexport.cli.options import Debug, Libraries, Trust
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_output


def bundle_command(
    programs: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD=ARCHIVE...", help="Programs to store, such as encode=a.pt2 decode=b.pt2."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Archive (.pt2) to write."),
    ],
    prefix: Annotated[
        list[str] | None,
        typer.Option(
            "--prefix",
            metavar="METHOD=OUT[:IN]",
            help=(
                "Map weight names that begin with IN in a method to names that begin with OUT in "
                "the checkpoint. Repeatable. Default: the prefixes of the bundle that a program was "
                "loaded from."
            ),
        ),
    ] = None,
    trust: Trust = False,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Store programs that belong together in one archive, with shared weights stored once.

    Methods share a weight if a checkpoint has it under the same name; see --prefix. Exit code 0: written. 2:
    the programs do not fit together, or a file is refused.
    """
    paths = _pairs(programs, "METHOD=ARCHIVE")
    prefixes = {
        method: (outside, inside)
        for method, text in _pairs(prefix or [], "METHOD=OUT[:IN]").items()
        for outside, _, inside in [text.partition(":")]
    }

    def saved(_: Show | None) -> int:
        from fakexport.archive import load, save_bundle

        loaded = {method: load(path, trust=trust) for method, path in paths.items()}
        return len(save_bundle(loaded, output, prefixes=prefixes).shared)

    with quiet(is_debug=debug):
        shared = isolated(saved, library, runs_code=trust)
    size = output.stat().st_size
    write_output(f"{output}: {size:,} bytes, {', '.join(paths)}, {shared} weights and buffers shared\n")


def _pairs(texts: list[str], form: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"{text!r} does not have the form {form}")
        if name in found:
            raise typer.BadParameter(f"{name} is given twice")
        found[name] = value
    return found
