"""`fakexport bench`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli.isolated_work import Show, isolated
from fakexport.cli.options import (
    Debug,
    Dtype,
    DynamicDims,
    ExampleInputs,
    Libraries,
    NoProgress,
    Source,
    TextOrJson,
)
from fakexport.cli.progress_display import lines_on_stderr
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import output_width, write_output

if TYPE_CHECKING:
    from fakexport.report import BenchReport, ChartFormat

_ALL = "eager,weights,torchscript-trace,torchscript-script,export,export+compile,aoti,onnx,executorch"


def bench_command(
    source: Source,
    modes: Annotated[
        str, typer.Option("--modes", metavar="MODE,...", help="Deployment formats to benchmark.")
    ] = _ALL,
    dtype: Dtype = None,
    input_: ExampleInputs = None,
    dynamic: DynamicDims = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", metavar="N", min=1, show_default="torch's own", help=("Number of torch threads.")
        ),
    ] = None,
    warmup: Annotated[
        int, typer.Option("--warmup", metavar="N", min=0, help=("Untimed calls before timing starts."))
    ] = 3,
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", min=1, help="Number of timed calls.")] = 20,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Time limit for each process.")
    ] = 600,
    format_: TextOrJson = "text",
    chart: Annotated[
        Path | None,
        typer.Option("--chart", metavar="FILE", help="Also draw a bar chart, as .png or .svg."),
    ] = None,
    no_progress: NoProgress = False,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Benchmark deployment formats and check their outputs against eager mode.

    Exit code 0: the table is complete; a format that does not work has a cell with the reason. 2: bad usage,
    model or environment.
    """
    chart_format = None if chart is None else _chart_format(chart)

    def measured(on_progress: Show | None) -> BenchReport:
        from fakexport.benchmark import bench

        return bench(
            source,
            modes=modes.split(","),
            dtype=dtype,
            inputs=input_ or (),
            dynamic_shapes=dynamic or (),
            libraries=list(library or ()),
            threads=threads,
            warmup=warmup,
            repeat=repeat,
            timeout_s=timeout,
            on_progress=on_progress,
        )

    with lines_on_stderr(is_shown=not no_progress) as on_progress, quiet(is_debug=debug):
        from fakexport.report import bench_to_dict, json_text, render_bench

        # The libraries are loaded here too, which says at once what is wrong with them.
        report = isolated(measured, library, on_progress=on_progress)
    is_text = format_ == "text"
    write_output(render_bench(report, width=output_width()) if is_text else json_text(bench_to_dict(report)))
    if chart is not None and chart_format is not None:
        from fakexport.files import new_file
        from fakexport.report import render_bench_chart

        drawn = render_bench_chart(report, format_=chart_format)
        with new_file(chart) as file:
            file.write(drawn)


def _chart_format(path: Path) -> ChartFormat:
    """Return the format of a chart, and refuse a bad one before the benchmark instead of after it."""
    importlib.import_module("matplotlib")
    match path.suffix:
        case ".png":
            return "png"
        case ".svg":
            return "svg"
    raise typer.BadParameter(f"{path}: a chart must be a .png or .svg file", param_hint="--chart")
