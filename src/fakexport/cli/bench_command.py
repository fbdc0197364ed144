"""`fakexport bench`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli import options
from fakexport.cli.isolated_work import Show, UserCode
from fakexport.cli.progress_display import lines_on_stderr
from fakexport.cli.streams import output_width, write_found

if TYPE_CHECKING:
    from fakexport.report import BenchReport

_ALL = "eager,weights,torchscript-trace,torchscript-script,export,export+compile,aoti,onnx,executorch"


@options.grouped_options
def bench_command(
    source: options.Source,
    modes: Annotated[
        str, typer.Option(metavar="MODE,...", help="Benchmark these deployment formats.")
    ] = _ALL,
    dtype: options.Dtype = None,
    input_: options.ExampleInputs = None,
    dynamic: options.DynamicDims = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, show_default="torch's own", help="Use N torch threads.")
    ] = None,
    warmup: Annotated[
        int, typer.Option(metavar="N", min=0, help="Make N untimed calls before timing starts.")
    ] = 3,
    repeat: Annotated[int, typer.Option(metavar="N", min=1, help="Time N calls.")] = 20,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Stop each process after this time.")
    ] = 600,
    format_: options.TextOrJson = "text",
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw a bar chart as .png or .svg.")
    ] = None,
    *,
    code: UserCode,
) -> None:
    """Benchmark deployment formats and check their outputs against eager mode.

    Exit code 0: the table is complete; below it are the reasons why formats do not work. 2: bad usage, model
    or environment.
    """
    if chart is not None:
        options.check_chart(chart, "--chart", ".png", ".svg")

    def measured(on_progress: Show | None = None) -> BenchReport:
        from fakexport.deploy.benchmark import bench

        return bench(
            source,
            modes=modes.split(","),
            dtype=dtype,
            inputs=input_ or (),
            dynamic_shapes=dynamic or (),
            libraries=list(code.libraries or ()),
            threads=threads,
            warmup=warmup,
            repeat=repeat,
            timeout_s=timeout,
            on_progress=on_progress,
        )

    with lines_on_stderr(is_shown=not code.no_progress) as on_progress:
        # The libraries are loaded here too, so that errors in them are reported at once.
        report = code.run(measured, on_progress=on_progress)
    from fakexport.report import render_bench

    write_found(report, format_, partial(render_bench, width=output_width()))
    if chart is not None:
        from fakexport.report import render_bench_chart

        drawn = render_bench_chart(report, format_="svg" if chart.suffix == ".svg" else "png")
        options.write_file(chart, drawn)
