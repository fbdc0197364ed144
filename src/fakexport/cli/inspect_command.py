"""`fakexport inspect`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import typer

from fakexport.cli import options
from fakexport.cli.isolated_work import UserCode
from fakexport.cli.project_file import ModelOptions, Profiles, one_target, options_for
from fakexport.cli.streams import output_width, write_output


@options.grouped_options
def inspect_command(
    context: typer.Context,
    subject: Annotated[
        str, typer.Argument(metavar="FILE|SOURCE", help="Archive (.pt2), or a model as for `check`.")
    ],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TOPOLOGY",
            help="Devices to emulate while a model is built, such as `8xH100`. Default: the target in "
            "`[tool.fakexport]` if there is one, else `cpu`.",
        ),
    ] = None,
    device_map: options.DeviceMap = None,
    dtype: options.Dtype = None,
    parallel: options.Parallel = None,
    rank: Annotated[
        int | None,
        typer.Option(
            metavar="R", help="With `--parallel`: show the shard of rank R, counted from 0. Default: 0."
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Describe an archive even if it contains pickled records or native libraries. Nothing in "
            "them is run.",
        ),
    ] = False,
    format_: Annotated[
        Literal["text", "json"],
        typer.Option("--format", help="Print text, or JSON for scripts (archives only)."),
    ] = "text",
    method: options.Method = None,
    trust_remote_code: options.TrustRemoteCode = None,
    devices: Annotated[
        bool,
        typer.Option(
            "--devices",
            help="For an archive: list hard-coded devices, and nodes that fail on other devices (FE501).",
        ),
    ] = False,
    profiles: Profiles = None,
    *,
    code: UserCode,
) -> None:
    """Describe an archive, or a model's modules with parameters, bytes and devices. Loads no weights.

    For an archive: its origin, target, inputs, outputs, weights, constants, records and missing operator
    libraries. A model does not have to fit in this machine's memory; identical modules share one row.
    """
    width = output_width()
    if not options.is_archive_name(subject):
        if devices or trust or method is not None or format_ != "text":
            raise typer.BadParameter(
                "--devices, --method, --trust and --format json apply to archives, not to models"
            )
        given = ModelOptions(
            device_map=device_map, dtype=dtype, trust_remote_code=trust_remote_code, libraries=code.libraries
        )
        known = options_for(context, subject, given)
        topology = one_target(known, target, "inspect")

        def inspected() -> str:
            from fakexport.checking import inspect
            from fakexport.report import render_modules

            root = inspect(
                subject,
                topology=topology,
                device_map=known.device_map,
                dtype=known.dtype,
                parallel=parallel,
                rank=rank,
                trust_remote_code=bool(known.trust_remote_code),
            )
            return render_modules(root, width=width)

        write_output(replace(code, libraries=known.libraries).run(inspected, "inspect"))
        return
    if any(value is not None for value in (target, device_map, dtype, parallel, rank, trust_remote_code)):
        raise typer.BadParameter(
            "--target, --device-map, --dtype, --parallel, --rank and --trust-remote-code apply to models, "
            "not to archives"
        )
    if devices and format_ == "json":
        raise typer.BadParameter("--devices prints only text: remove --format json")

    def described() -> str:
        from fakexport.archive import describe
        from fakexport.report import json_text, render_archive, render_device_literals, to_dict

        if devices:
            from fakexport.archive import load
            from fakexport.exporting.program import inspect_devices

            return render_device_literals(inspect_devices(load(subject, method=method, trust=trust)))
        found = describe(subject, method=method, trust=trust)
        return json_text(to_dict(found)) if format_ == "json" else render_archive(found, width=width)

    write_output(code.run(described, "inspect", runs_code=trust and devices))
