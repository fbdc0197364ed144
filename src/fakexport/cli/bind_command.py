"""`fakexport bind`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli.isolated_work import Show, isolated
from fakexport.cli.options import (
    Archive,
    BoundAdapters,
    BoundDevices,
    Checkpoint,
    Debug,
    Libraries,
    Trust,
)
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_output

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def bind_command(
    archive: Archive,
    checkpoint: Checkpoint,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Archive (.pt2) to write."),
    ],
    link: Annotated[
        bool, typer.Option("--link", help="Reference the checkpoint's files instead of copying them.")
    ] = False,
    adapter: BoundAdapters = None,
    rank: Annotated[
        int | None,
        typer.Option("--rank", metavar="R", help="Bind the program of rank R alone, from 0, to its parts."),
    ] = None,
    devices: BoundDevices = None,
    trust: Trust = False,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Bind the weights of a checkpoint to an archive, all of them or none.

    Stock `torch.export.load` opens the result, unless it is linked. Exit code 0: written. 2: the weights do
    not fit, or a file is refused; `fakexport verify-weights` lists what is wrong.
    """

    def bound(_: Show | None) -> tuple[int, str]:
        from fakexport.archive import Bundle, bind, load, load_bundle, save
        from fakexport.deploy import rank_of_archive
        from fakexport.weights import open_checkpoint

        opened = open_checkpoint(checkpoint, adapter=adapter or ())
        program: Bundle | ExportedProgram
        if rank is None:
            program = load_bundle(archive, trust=trust)
        else:
            program = load(archive, method=rank_of_archive(archive, rank).method, trust=trust)
        made = bind(program, opened, devices=devices)
        tensors = save(made, output, link=opened if link else None).tensors
        locations = {tensor.location for tensor in tensors if tensor.location}
        where = ""
        if link:
            linked = sum(place.length for place in locations if place.is_link)
            inside = sum(place.length for place in locations if not place.is_link)
            where = f": {linked:,} bytes linked, {inside:,} bytes inside"
        return sum(1 + len(tensor.aliases) for tensor in tensors), where

    with quiet(is_debug=debug):
        count, where = isolated(bound, library, runs_code=trust)
    write_output(f"{output}: {output.stat().st_size:,} bytes, {count} weights bound{where}\n")
