"""`fakexport export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fakexport._libraries import import_library
from fakexport.cli.options import (
    Adapter,
    AdapterMode,
    Assume,
    CacheForm,
    CacheLength,
    Debug,
    DeviceMap,
    Dtype,
    DynamicDims,
    ExampleInputs,
    Libraries,
    NoProgress,
    Parallel,
    Profiles,
    Source,
    Strict,
    UseCache,
    load_libraries,
)
from fakexport.cli.progress_display import progress_on_stderr
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import output_width, write_error_line, write_output, write_report

if TYPE_CHECKING:
    from fakexport.report import Report
    from fakexport.sources import ExportedWorkload


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
    workload: Annotated[
        Literal["forward", "prefill", "decode", "generate"],
        typer.Option(
            help="Call of an hf: model: as for `check`; or generate, a bundle of prefill and decode for "
            "`fakexport generate`."
        ),
    ] = "forward",
    cache_length: CacheLength = None,
    cache_form: CacheForm = "inputs",
    component: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A part of an hf: model, as for `check`; or all, a bundle of its parts.",
        ),
    ] = None,
    adapter: Adapter = None,
    adapter_mode: AdapterMode = "apart",
    parallel: Parallel = None,
    rank: Annotated[
        int | None,
        typer.Option(
            metavar="R",
            help="With --parallel: write the program of rank R alone, from 0. Default: those of all ranks.",
        ),
    ] = None,
    assume: Assume = None,
    no_progress: NoProgress = False,
    profiles: Profiles = None,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Export a model for one target to a weight-less archive, with the same report as `check`.

    Exit code 0: written, without errors. 1: errors were reported; if the export itself failed, nothing is
    written. 2: bad usage or environment, or the file cannot be written.
    """
    prepare = partial(load_libraries, library) if library else None
    with progress_on_stderr(is_shown=not no_progress) as on_progress, quiet(is_debug=debug):
        from fakexport.checking import CheckCall, Wanted, report_on

        calls = {
            name: CheckCall(
                source=source,
                target=[target],
                device_map=device_map,
                dtype=dtype,
                inputs=input_ or [],
                dynamic_shapes=dynamic or None,
                strict=bool(strict),
                use_cache=bool(use_cache),
                workload=call,
                cache_length=cache_length,
                cache_form=cache_form,
                component=part,
                adapter=adapter,
                adapter_mode=adapter_mode,
                parallel=parallel,
                rank="all" if rank is None and parallel is not None else rank,
                assume=assume or (),
                prepare=prepare,
            )
            for name, (call, part) in _programs(source, workload, component, target, dtype).items()
        }
        if len(calls) > 1:
            import_library(source)  # Once for all processes.
        reports = {
            name: report_on(call, on_progress=on_progress, wanted=Wanted(programs=True))
            for name, call in calls.items()
        }
        is_written = _saved(reports, output, prepare)
    from fakexport.report import render_report

    for name, report in reports.items():
        write_output(f"{name}\n" if len(reports) > 1 else "")
        write_report(render_report(report, width=output_width()))
    if is_written:
        write_error_line(f"{output}: {output.stat().st_size:,} bytes, without weights")
    if not all(report.is_clean for report in reports.values()):
        raise typer.Exit(1)


def _programs(
    source: str,
    workload: ExportedWorkload | Literal["generate"],
    component: str | None,
    target: str,
    dtype: str | None,
) -> dict[str, tuple[ExportedWorkload, str | None]]:
    """Return the call and the component of each program to export, by its name in the bundle."""
    if component == "all" and workload == "forward":
        from fakexport.capture import components

        return {name: ("forward", name) for name in components(source, target=target, dtype=dtype)}
    if workload == "generate":
        return {"prefill": ("prefill", component), "decode": ("decode", component)}
    return {workload: (workload, component)}


def _saved(reports: Mapping[str, Report], output: Path, prepare: Callable[[], None] | None) -> bool:
    """Write the programs, several of them as a bundle; return whether all of them are there."""
    from fakexport.checking import bundled
    from fakexport.files import new_file

    programs = {name: each.verdicts[0].saved for name, each in reports.items()}
    found = {name: saved for name, saved in programs.items() if saved is not None and saved.fault is None}
    if len(found) < len(reports):
        return False
    (first, *more) = found.values()
    archive = bundled(found, prepare) if more else first.content
    with new_file(output) as file:
        file.write(archive)
    return True
