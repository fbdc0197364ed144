"""`fakexport export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    Profiles,
    ReuseBlocks,
    Source,
    Strict,
    UseCache,
)
from fakexport.cli.progress_display import progress_on_stderr
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import output_width, write_error_line, write_report


def export_command(
    source: Source,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Archive (.pt2) to write."),
    ],
    target: Annotated[
        str, typer.Option(metavar="TOPOLOGY", help="Devices of the target, such as cpu, H100 or 8xH100.")
    ] = "cpu",
    device_map: DeviceMap = None,
    dtype: Dtype = None,
    input_: ExampleInputs = None,
    dynamic: DynamicDims = None,
    strict: Strict = None,
    use_cache: UseCache = None,
    reuse_blocks: ReuseBlocks = None,
    verify_reuse: Annotated[
        bool,
        typer.Option(
            "--verify-reuse",
            help="With --reuse-blocks: capture a second time, every block traced, and compare the programs.",
        ),
    ] = False,
    no_progress: NoProgress = False,
    profiles: Profiles = None,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Export a model for one target to a weight-less archive, with the same report as `check`.

    Exit code 0: written, without errors. 1: errors were reported; if the export itself failed, nothing is
    written. 2: bad usage or environment, or the file cannot be written.
    """
    with progress_on_stderr(is_shown=not no_progress) as on_progress, quiet(is_debug=debug):
        from fakexport.archive import save
        from fakexport.checking import check

        load_libraries(library)
        report = check(
            source,
            target=[target],
            device_map=device_map,
            dtype=dtype,
            inputs=input_ or [],
            dynamic_shapes=dynamic or None,
            strict=bool(strict),
            use_cache=bool(use_cache),
            reuse_blocks=bool(reuse_blocks),
            verify_reuse=verify_reuse,
            on_progress=on_progress,
        )
        (verdict,) = report.verdicts
        if verdict.program is not None:
            save(verdict.program, output)
    from fakexport.report import render_report

    write_report(render_report(report, width=output_width()))
    if verdict.program is not None:
        if verify_reuse:
            write_error_line("block reuse verified: the program is the same with every block traced")
        write_error_line(f"{output}: {output.stat().st_size:,} bytes, without weights")
    if not report.is_clean:
        raise typer.Exit(1)
