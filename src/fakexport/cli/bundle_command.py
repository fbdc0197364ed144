"""`fakexport bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fakexport.cli.operator_libraries import load_libraries
from fakexport.cli.options import Debug, Libraries, Trust
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_output

__all__ = ["bundle_command"]


def bundle_command(
    programs: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD=ARCHIVE...", show_default=False, help="The programs: encode=a.pt2 decode=b.pt2."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", show_default=False, help="The .pt2 to write.")
    ],
    prefix: Annotated[
        list[str] | None,
        typer.Option(
            "--prefix",
            metavar="METHOD=OUT[:IN]",
            show_default=False,
            help="The checkpoint's names of a method's weights begin with OUT where the program's begin with "
            "IN. Repeatable. Default: as in the bundle that a program came out of.",
        ),
    ] = None,
    trust: Trust = False,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Puts programs that belong together into one archive, with the weights that they share once.

    Weights of two methods are one if a checkpoint has them under the same name; see --prefix. Exit code 0:
    written. 2: the programs do not go together, or a file is refused.
    """
    paths = _pairs(programs, "METHOD=ARCHIVE")
    prefixes = {
        method: (outside, inside)
        for method, text in _pairs(prefix or [], "METHOD=OUT[:IN]").items()
        for outside, _, inside in [text.partition(":")]
    }
    with quiet(is_debug=debug):
        from fakexport.archive import load, save_bundle

        load_libraries(library)
        loaded = {method: load(path, trust=trust) for method, path in paths.items()}
        written = save_bundle(loaded, output, prefixes=prefixes)
    size, shared = output.stat().st_size, len(written.shared)
    write_output(f"{output}: {size:,} bytes, {', '.join(loaded)}, {shared} weights and buffers shared\n")


def _pairs(texts: list[str], form: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"{text!r} is not of the form {form}")
        if name in found:
            raise typer.BadParameter(f"{name} is given twice")
        found[name] = value
    return found
