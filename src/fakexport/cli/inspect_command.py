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
    devices: Annotated[
        bool,
        typer.Option("--devices", help="Of a .pt2: where its program names devices, and what that breaks."),
    ] = False,
    debug: Debug = False,
) -> None:
    """The model's modules with parameters, bytes and devices; nothing is loaded.

    The model need not fit this machine. Rows of equal blocks are one line.
    """
    if devices:
        write_output(_device_literals(source, is_debug=debug))
        return
    with quiet(is_debug=debug):
        from fakexport.check import inspect
        from fakexport.report import render_modules

        root = inspect(source, topology=target, device_map=device_map, dtype=dtype)
    write_output(render_modules(root, width=output_width()))


def _device_literals(archive: str, *, is_debug: bool) -> str:
    with quiet(is_debug=is_debug):
        from fakexport.archive import load
        from fakexport.program import inspect_devices
        from fakexport.report import render_device_literals

        return render_device_literals(inspect_devices(load(archive)))
