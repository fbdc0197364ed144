"""`fakexport check`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli.check_output import CheckOutput, parse_writes
from fakexport.cli.operator_libraries import load_libraries
from fakexport.cli.options import (
    Adapter,
    AdapterMode,
    CacheLength,
    Component,
    Debug,
    DeviceMap,
    Dtype,
    DynamicDims,
    ExampleInputs,
    Libraries,
    NoProgress,
    OptionalSource,
    OutputFormat,
    Profiles,
    ReuseBlocks,
    Strict,
    UseCache,
    Workload,
)
from fakexport.cli.progress_display import progress_on_stderr
from fakexport.cli.project_check import check_project
from fakexport.cli.project_file import CheckOptions, project_file_of
from fakexport.cli.quiet import quiet

if TYPE_CHECKING:
    from fakexport.documents import AdapterMode as AdapterModeName
    from fakexport.report import Progress, Report
    from fakexport.sources import ExportedWorkload


def check_command(
    context: typer.Context,
    source: OptionalSource = None,
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
    strict: Strict = None,
    use_cache: UseCache = None,
    workload: Workload = "forward",
    cache_length: CacheLength = None,
    component: Component = None,
    adapter: Adapter = None,
    adapter_mode: AdapterMode = "apart",
    reuse_blocks: ReuseBlocks = None,
    format_: Annotated[
        OutputFormat,
        typer.Option(
            "--format",
            help="Output format: text to read, JSON for scripts, annotations for GitHub Actions, SARIF for "
            "code scanning, or Markdown.",
        ),
    ] = "text",
    write: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORMAT=FILE",
            help="Write the report to a file too, such as sarif=report.sarif. Repeatable.",
        ),
    ] = None,
    no_progress: NoProgress = False,
    profiles: Profiles = None,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Check whether a model exports for each target, how the programs differ, and what to fix.

    Without a SOURCE, check all of those that [tool.fakexport] in pyproject.toml lists.

    Exit code 0: every target exports without errors. 1: an export failed or errors were reported. 2: bad
    usage or environment.
    """
    given = CheckOptions(
        target=target or None,
        device_map=device_map,
        dtype=dtype,
        inputs=input_ or None,
        dynamic=dynamic or None,
        strict=strict,
        use_cache=use_cache,
        reuse_blocks=reuse_blocks,
        libraries=library or None,
    )
    loaded: set[str] = set()

    def checked(source: str, options: CheckOptions) -> Report:
        with progress_on_stderr(is_shown=not no_progress) as on_progress, quiet(is_debug=debug):
            load_libraries(library for library in options.libraries or () if library not in loaded)
            loaded.update(options.libraries or ())
            return _check(
                source, options, workload, cache_length, component, (adapter, adapter_mode), on_progress
            )

    output = CheckOutput(format_, parse_writes(write or []), is_project=source is None)
    project = project_file_of(context)
    if source is None:
        raise typer.Exit(check_project(project, given, checked, output=output, is_debug=debug))
    report = checked(source, given if project is None else given.over(project.options_for(source)))
    _written(report, output)
    if not report.is_clean:
        raise typer.Exit(1)


def _written(report: Report, output: CheckOutput) -> None:
    from fakexport.report import ProjectReport

    output.write_part(report)
    output.write_end(ProjectReport((report,), {}), root=Path.cwd())


def _check(
    source: str,
    options: CheckOptions,
    workload: ExportedWorkload,
    cache_length: int | None,
    component: str | None,
    adapter: tuple[str | None, AdapterModeName],
    on_progress: Callable[[Progress], None] | None,
) -> Report:
    from fakexport.checking import check

    return check(
        source,
        target=options.target or ["cpu"],
        device_map=options.device_map,
        dtype=options.dtype,
        inputs=options.inputs or [],
        dynamic_shapes=options.dynamic or None,
        strict=bool(options.strict),
        use_cache=bool(options.use_cache),
        workload=workload,
        cache_length=cache_length,
        component=component,
        adapter=adapter[0],
        adapter_mode=adapter[1],
        reuse_blocks=options.reuse_blocks is not False,
        on_progress=on_progress,
    )
