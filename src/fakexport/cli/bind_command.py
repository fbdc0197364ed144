"""`fakexport bind`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fakexport.cli.options import Archive, BoundDevices, Checkpoint, Debug, Trust, device_pairs
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_output

__all__ = ["bind_command"]


def bind_command(
    archive: Archive,
    checkpoint: Checkpoint,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", show_default=False, help="The .pt2 to write.")
    ],
    device_map: BoundDevices = None,
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Puts the weights of a checkpoint into an archive, all of them or none.

    Stock `torch.export.load` opens the result. Exit code 0: written. 2: the weights do not fit, or a file is
    refused; `fakexport verify-weights` lists what is wrong.
    """
    with quiet(is_debug=debug):
        from fakexport.archive import bind, load_archive, save

        loaded = load_archive(archive, trust=trust)
        bound = bind(loaded.program, checkpoint, device_map=device_pairs(device_map))
        about = loaded.manifest
        save(
            bound,
            output,
            source=about.source,
            topology=about.topology,
            profiles=about.profiles,
            device_map=about.device_map,
            dtype=about.dtype,
            dynamic_shapes=about.dynamic_shapes,
            skipped_checks=about.skipped_checks,
            versions=about.versions,
        )
    write_output(f"{output}: {output.stat().st_size:,} bytes, {len(bound.state_dict)} weights bound\n")
