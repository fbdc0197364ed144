"""Commands that print reference pages: `fakexport explain` and `devices`."""

from __future__ import annotations

from typing import Annotated

import typer

from fakexport.cli.project_file import Profiles
from fakexport.cli.streams import output_width, write_output


def explain_command(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="Code or name of a diagnostic, such as FE201.")
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Print the pages of all diagnostics, as in `docs/rules.md`.")
    ] = False,
) -> None:
    """Explain a diagnostic, with a model that triggers it and a fix. Without a code, list all diagnostics."""
    from fakexport.report import explain, explain_all, render_rules
    from fakexport.rules import all_rules, installed_rules

    if is_all:
        if code is not None:
            raise typer.BadParameter("pass a code or --all, not both")
        write_output(explain_all())
        return
    write_output(render_rules((*all_rules(), *installed_rules())) if code is None else explain(code))


def devices_command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name or alias of a device, such as `H100`.")
    ] = None,
    profiles: Profiles = None,
) -> None:
    """List device profiles. With a name, show every value of that device and its public source."""
    from fakexport.emulation.devices import load_profiles, profile_named
    from fakexport.report import render_device, render_devices

    if name is None:
        write_output(render_devices(load_profiles().values(), width=output_width()))
    else:
        write_output(render_device(profile_named(name)))
