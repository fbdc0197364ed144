"""`fakexport export`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fakexport.cli.checks import CallOptions, check_call
from fakexport.cli.isolated_work import isolated
from fakexport.cli.options import (
    Debug,
    NoProgress,
    OutputArchive,
    Source,
    Timeout,
    grouped_options,
    load_libraries,
    write_file,
)
from fakexport.cli.progress_display import progress_on_stderr
from fakexport.cli.project_file import ModelOptions, Profiles, one_target, options_for
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import output_width, write_error_line, write_output, write_report
from fakexport.models import import_library

if TYPE_CHECKING:
    from fakexport.models.sources import ExportedWorkload
    from fakexport.report import Report, SavedPrograms


@grouped_options
def export_command(
    context: typer.Context,
    source: Source,
    output: OutputArchive,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TOPOLOGY",
            help="Devices to export for, such as `cpu`, `H100`, `8xH100` or `cpu+2xA100-40GB`. Default: the "
            "target in `[tool.fakexport]` if there is one, else `cpu`.",
        ),
    ] = None,
    *,
    options: ModelOptions,
    call: CallOptions,
    workload: Annotated[
        Literal["forward", "prefill", "decode", "chunk", "generate"],
        typer.Option(
            help="Export this workload of an `hf:` model, as for `check`; or `generate`, a bundle of prefill "
            "and decode for `fakexport generate`."
        ),
    ] = "forward",
    component: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Export one component, as for `check`; or `all`, a bundle of every component. With "
            "`--workload generate`, the last component becomes two programs: prefill and decode.",
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            metavar="R",
            help="With `--parallel`: export only the program of rank R, counted from 0. Default: all "
            "ranks, as a bundle.",
        ),
    ] = None,
    no_progress: NoProgress = False,
    timeout: Timeout = None,
    profiles: Profiles = None,
    debug: Debug = False,
) -> None:
    """Export a model for one target to an archive without weights, and print the same report as `check`.

    Exit code 0: written, without errors. 1: errors were reported; if the export itself failed, nothing is
    written. 2: bad usage or environment, or the file cannot be written.
    """
    known = options_for(context, source, options)
    target = one_target(known, target, "export")
    shown = progress_on_stderr(is_shown=not no_progress, limit_s=timeout)
    with shown as on_progress, quiet(is_debug=debug):
        from fakexport.checking import Wanted, report_on

        shown_rank = "all" if rank is None and call.parallel is not None else rank
        calls = {
            name: check_call(
                source, known, call, target=[target], workload=own, component=part, rank=shown_rank
            )
            for name, (own, part) in _programs(source, workload, component, target, known).items()
        }
        if len(calls) > 1:
            import_library(source)  # Import it once, before the processes are forked.
        reports = {
            name: report_on(each, on_progress=on_progress, wanted=Wanted(programs=True, stages=True))
            for name, each in calls.items()
        }
        is_written = _saved(reports, output, known.libraries)
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
    options: ModelOptions,
) -> dict[str, tuple[ExportedWorkload, str | None]]:
    """Return a dict from the name of each program to export to its workload and component."""
    if component == "all" and workload in ("forward", "generate"):
        from fakexport.exporting.capture import components

        found = isolated(lambda: components(source, target=target, dtype=options.dtype), options.libraries)
        parts: dict[str, tuple[ExportedWorkload, str | None]] = {name: ("forward", name) for name in found}
        if workload == "generate":
            parts |= {found[-1]: ("prefill", found[-1]), f"{found[-1]}_with_past": ("decode", found[-1])}
        return parts
    if workload == "generate":
        return {"prefill": ("prefill", component), "decode": ("decode", component)}
    return {workload: (workload, component)}


def _saved(reports: Mapping[str, Report], output: Path, libraries: list[str] | None) -> bool:
    """Write the programs, or a bundle of several programs. Return whether all programs were exported."""
    from fakexport.checking import bundled

    programs: dict[str, SavedPrograms | None] = {}
    for name, each in reports.items():
        prefix = f"{name}_" if len(reports) > 1 else ""
        for index, verdict in enumerate(each.verdicts):
            programs[name if verdict.target.sizes is None else f"{prefix}range{index}"] = verdict.saved
    found = {name: saved for name, saved in programs.items() if saved is not None and saved.fault is None}
    if len(found) < len(programs):
        return False
    (only, *more) = found.values()
    content = bundled(found, partial(load_libraries, libraries)) if more else only.content
    write_file(output, content)
    return True
