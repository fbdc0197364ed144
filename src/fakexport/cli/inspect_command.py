"""`fakexport inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

from fakexport.cli.options import Debug, DeviceMap, Dtype, Source
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import output_width, write_output

__all__ = ["inspect_command"]


def inspect_command(
    source: Source,
    target: Annotated[
        str,
        typer.Option(metavar="TOPOLOGY", help="Devices that the device map may name, such as 8xH100."),
    ] = "cpu",
    device_map: DeviceMap = None,
    dtype: Dtype = None,
    debug: Debug = False,
) -> None:
    """The model's modules with parameters, bytes and devices; nothing is loaded.

    The model need not fit this machine. Rows of equal blocks are one line.
    """
    with quiet(is_debug=debug):
        from fakexport.check import inspect
        from fakexport.report import render_modules

        root = inspect(source, topology=target, device_map=device_map, dtype=dtype)
    write_output(render_modules(root, width=output_width()))
