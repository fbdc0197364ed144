"""`fakexport check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli.operator_libraries import load_libraries
from fakexport.cli.options import (
    Debug,
    DeviceMap,
    Dtype,
    DynamicDims,
    ExampleInputs,
    Libraries,
    NoProgress,
    OutputFormat,
    Source,
    Strict,
    UseCache,
)
from fakexport.cli.progress_display import progress_on_stderr
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import output_width, write_output

if TYPE_CHECKING:
    from fakexport.report import Report

__all__ = ["check_command"]


def check_command(
    source: Source,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPOLOGY",
            show_default="cpu",
            help="Devices of one target, such as cpu, H100, 8xH100 or cpu+2xA100-40GB. Repeatable: one "
            "verdict each.",
        ),
    ] = None,
    device_map: DeviceMap = None,
    dtype: Dtype = None,
    input_: ExampleInputs = None,
    dynamic: DynamicDims = None,
    strict: Strict = False,
    use_cache: UseCache = False,
    format_: Annotated[
        OutputFormat,
        typer.Option("--format", help="Text for people, JSON for programs, annotations for GitHub Actions."),
    ] = "text",
    no_progress: NoProgress = False,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Does the model export for each target, how do the programs differ, and what is wrong?

    Exit code 0: every target exports and there is no error. 1: there are findings. 2: bad usage.
    """
    with progress_on_stderr(is_shown=not no_progress) as on_progress, quiet(is_debug=debug):
        from fakexport.checking import check

        load_libraries(library)
        report = check(
            source,
            targets=target or ["cpu"],
            device_map=device_map,
            dtype=dtype,
            inputs=input_ or [],
            dynamic_shapes=dynamic or None,
            strict=strict,
            use_cache=use_cache,
            on_progress=on_progress,
        )
    write_output(_rendered(report, format_))
    if not report.is_clean:
        raise typer.Exit(1)


def _rendered(report: Report, output_format: OutputFormat) -> str:
    from fakexport.report import render_github, render_json, render_report

    if output_format == "json":
        return render_json(report)
    return render_github(report) if output_format == "github" else render_report(report, width=output_width())
