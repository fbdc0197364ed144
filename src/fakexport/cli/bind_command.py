"""`fakexport bind`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli.operator_libraries import load_libraries
from fakexport.cli.options import Archive, BoundDevices, Checkpoint, Debug, Libraries, Trust
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_output

if TYPE_CHECKING:
    from fakexport.archive.manifest import TensorEntry
    from fakexport.weights import Checkpoint as OpenCheckpoint

__all__ = ["bind_command"]


def bind_command(
    archive: Archive,
    checkpoint: Checkpoint,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", show_default=False, help="The .pt2 to write.")
    ],
    link: Annotated[
        bool, typer.Option("--link", help="Refer to the checkpoint's files instead of copying them.")
    ] = False,
    device_map: BoundDevices = None,
    trust: Trust = False,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Puts the weights of a checkpoint into an archive, all of them or none.

    Stock `torch.export.load` opens the result, unless it is linked. Exit code 0: written. 2: the weights do
    not fit, or a file is refused; `fakexport verify-weights` lists what is wrong.
    """
    with quiet(is_debug=debug):
        from fakexport.archive import methods_of
        from fakexport.weights import open_checkpoint

        load_libraries(library)
        opened = open_checkpoint(checkpoint)
        write = _bundle if methods_of(archive, trust=trust) else _program
        tensors = write(archive, opened, output, device_map=device_map, link=link, trust=trust)
    locations = {tensor.location for tensor in tensors if tensor.location}
    where = ""
    if link:
        linked = sum(place.length for place in locations if place.is_link)
        inside = sum(place.length for place in locations if not place.is_link)
        where = f": {linked:,} bytes linked, {inside:,} bytes inside"
    count = sum(1 + len(tensor.aliases) for tensor in tensors)
    write_output(f"{output}: {output.stat().st_size:,} bytes, {count} weights bound{where}\n")


def _program(
    archive: str,
    checkpoint: OpenCheckpoint,
    output: Path,
    *,
    device_map: str | None,
    link: bool,
    trust: bool,
) -> list[TensorEntry]:
    from fakexport.archive import bind, load, save

    bound = bind(load(archive, trust=trust), checkpoint, device_map=device_map)
    return list(save(bound, output, link=checkpoint if link else None).tensors)


def _bundle(
    archive: str,
    checkpoint: OpenCheckpoint,
    output: Path,
    *,
    device_map: str | None,
    link: bool,
    trust: bool,
) -> list[TensorEntry]:
    """Binds all methods; what they share is among the tensors once."""
    from fakexport.archive import bind, load_bundle, save_bundle

    bound = bind(load_bundle(archive, trust=trust), checkpoint, device_map=device_map)
    return save_bundle(bound, output, link=checkpoint if link else None).tensors
