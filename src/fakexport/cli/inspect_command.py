"""`fakexport inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fakexport.cli.isolated_work import Show, isolated
from fakexport.cli.options import Debug, DeviceMap, Dtype, Libraries, Method, Parallel
from fakexport.cli.project_file import Profiles
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import output_width, write_output

if TYPE_CHECKING:
    from fakexport.program import ModuleSummary


def inspect_command(
    subject: Annotated[
        str,
        typer.Argument(metavar="FILE|SOURCE", help="Archive (.pt2), or a model as for `check`."),
    ],
    target: Annotated[
        str,
        typer.Option(metavar="TOPOLOGY", help="Devices that the device map may name, such as 8xH100."),
    ] = "cpu",
    device_map: DeviceMap = None,
    dtype: Dtype = None,
    parallel: Parallel = None,
    rank: Annotated[
        int | None,
        typer.Option(metavar="R", help="With --parallel: whose part of the model, from 0. Default: 0."),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help=("Describe a file even if it contains pickled records or native libraries; none are run."),
        ),
    ] = False,
    format_: Annotated[
        Literal["text", "json"],
        typer.Option("--format", help="Output format: text to read, or JSON for scripts (archives only)."),
    ] = "text",
    method: Method = None,
    devices: Annotated[
        bool,
        typer.Option(
            "--devices",
            help=("Show where the program of an archive hard-codes devices, and what that breaks."),
        ),
    ] = False,
    profiles: Profiles = None,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Describe an archive, or a model's modules with parameters, bytes and devices. Loads no weights.

    For an archive: its origin, target, inputs, outputs, weights, constants, records and missing operator
    libraries. A model does not have to fit in this machine's memory; identical blocks share a row.
    """
    if subject.endswith(".pt2") or Path(subject).is_file():
        if (target, device_map, dtype, parallel, rank) != ("cpu", None, None, None, None):
            raise typer.BadParameter(
                "--target, --device-map, --dtype, --parallel and --rank apply to models, not to archives"
            )
        _inspect_archive(
            subject, method, devices=devices, trust=trust, output_format=format_, library=library, debug=debug
        )
        return
    if devices or trust or method is not None or format_ != "text":
        raise typer.BadParameter(
            "--devices, --method, --trust and --format json apply to archives, not to models"
        )
    with quiet(is_debug=debug):
        from fakexport.checking import inspect
        from fakexport.report import render_modules

        def inspected(_: Show | None) -> ModuleSummary:
            return inspect(
                subject,
                topology=target,
                device_map=device_map,
                dtype=dtype,
                parallel=parallel,
                rank=rank,
            )

        root = isolated(inspected, library)
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
        raise typer.BadParameter("--devices prints text; drop --format json")
    width = output_width()

    def described(_: Show | None) -> str | dict[str, Any]:
        from fakexport.archive import describe
        from fakexport.report import archive_to_dict, render_archive

        if devices:
            return _device_literals(path, method, trust=trust)
        found = describe(path, method=method, trust=trust)
        return archive_to_dict(found) if output_format == "json" else render_archive(found, width=width)

    with quiet(is_debug=debug):
        from fakexport.report import json_text

        found = isolated(described, library, runs_code=trust and devices)
    write_output(found if isinstance(found, str) else json_text(found))


def _device_literals(path: str, method: str | None, *, trust: bool) -> str:
    from fakexport.archive import load
    from fakexport.program import inspect_devices
    from fakexport.report import render_device_literals

    return render_device_literals(inspect_devices(load(path, method=method, trust=trust)))
