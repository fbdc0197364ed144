"""`fakexport inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fakexport.cli.operator_libraries import load_libraries
from fakexport.cli.options import Debug, DeviceMap, Dtype, Libraries, Method, Profiles
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import output_width, write_output

__all__ = ["inspect_command"]


def inspect_command(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="FILE|SOURCE", show_default=False, help="A .pt2 archive; or a model, as for `check`."
        ),
    ],
    target: Annotated[
        str,
        typer.Option(metavar="TOPOLOGY", help="Devices that the device map may name, such as 8xH100."),
    ] = "cpu",
    device_map: DeviceMap = None,
    dtype: Dtype = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Describe a file with pickled records or native libraries; none is run."
        ),
    ] = False,
    format_: Annotated[
        Literal["text", "json"],
        typer.Option("--format", help="Text for people, JSON for programs (of an archive)."),
    ] = "text",
    method: Method = None,
    devices: Annotated[
        bool,
        typer.Option("--devices", help="Of a .pt2: where its program names devices, and what that breaks."),
    ] = False,
    profiles: Profiles = None,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """What an archive holds; or the model's modules with parameters, bytes and devices. Nothing is loaded.

    Of an archive: where it came from, its target, inputs, outputs, weights, constants and records. Operator
    libraries that it needs are named if they are not there. A model need not fit this machine; rows of equal
    blocks are one line.
    """
    if subject.endswith(".pt2") or Path(subject).is_file():
        if (target, device_map, dtype) != ("cpu", None, None):
            raise typer.BadParameter("--target, --device-map and --dtype are for models, not for archives")
        _inspect_archive(
            subject, method, devices=devices, trust=trust, output_format=format_, library=library, debug=debug
        )
        return
    if devices or trust or method is not None or format_ != "text":
        raise typer.BadParameter(
            "--devices, --method, --trust and --format json are for archives, not for models"
        )
    with quiet(is_debug=debug):
        load_libraries(library)
        from fakexport.checking import inspect
        from fakexport.report import render_modules

        root = inspect(subject, topology=target, device_map=device_map, dtype=dtype)
    write_output(render_modules(root, width=output_width()))


def _inspect_archive(
    path: str,
    method: str | None,
    *,
    devices: bool,
    trust: bool,
    output_format: str,
    library: list[str] | None,
    debug: bool,
) -> None:
    if devices and output_format == "json":
        raise typer.BadParameter("--devices gives text; --format json is without it")
    with quiet(is_debug=debug):
        load_libraries(library)
        if devices:
            text = _device_literals(path, method, trust=trust)
        else:
            text = _description(path, method, trust=trust, is_json=output_format == "json")
    write_output(text)


def _description(path: str, method: str | None, *, trust: bool, is_json: bool) -> str:
    from fakexport.archive import describe
    from fakexport.report import render_archive, render_archive_json

    found = describe(path, method=method, trust=trust)
    return render_archive_json(found) if is_json else render_archive(found, width=output_width())


def _device_literals(path: str, method: str | None, *, trust: bool) -> str:
    from fakexport.archive import load
    from fakexport.program import inspect_devices
    from fakexport.report import render_device_literals

    return render_device_literals(inspect_devices(load(path, method=method, trust=trust)))
