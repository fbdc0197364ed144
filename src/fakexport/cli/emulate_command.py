"""`fakexport emulate`."""

from __future__ import annotations

from typing import Annotated

import typer

from fakexport.cli.project_file import Profiles


def emulate_command(
    topology: Annotated[
        str,
        typer.Argument(metavar="TOPOLOGY", help="The devices, such as H100, 8xH100 or cpu+2xA100-40GB."),
    ],
    script: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT|-m MODULE [ARGUMENTS]",
            help="Python file to run, or -m and a module, followed by its arguments.",
        ),
    ],
    fake: Annotated[
        bool, typer.Option("--fake", help="Make every tensor fake, for a script that makes real ones.")
    ] = False,
    profiles: Profiles = None,
) -> None:
    """Run a Python script or module as if the devices existed for fake tensors.

    The script runs as `python SCRIPT ARGUMENTS` would: as `__main__`, with its own sys.argv, its folder first
    in sys.path, its exit code and its tracebacks. Real tensors still need real devices: the script makes the
    model and its inputs in a FakeTensorMode, or --fake does. Options come before TOPOLOGY.

    Exit code: the script's own; 2 for bad usage.
    """
    if script[0].startswith("-") and (script[0] != "-m" or len(script) == 1):
        raise typer.BadParameter("TOPOLOGY must be followed by a script, or by -m and a module")
    from fakexport.cli.main_module import run_as_main
    from fakexport.devices import emulate
    from fakexport.fake import fake_mode

    is_module = script[0] == "-m"
    name, *arguments = script[1:] if is_module else script
    around = fake_mode(topology) if fake else emulate(topology)
    if code := run_as_main(name, arguments, is_module=is_module, around=around):
        raise typer.Exit(code)
