"""`fakexport devices`."""

from __future__ import annotations

from typing import Annotated

import typer

from fakexport.cli.project_file import Profiles
from fakexport.cli.streams import output_width, write_output


def devices_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name or alias of a device, such as H100."),
    ] = None,
    profiles: Profiles = None,
) -> None:
    """List device profiles. With a name, show every value of that device and its public source."""
    from fakexport.devices import load_profiles, profile_named
    from fakexport.report import render_device, render_devices

    if name is None:
        write_output(render_devices(load_profiles().values(), width=output_width()))
    else:
        write_output(render_device(profile_named(name)))
