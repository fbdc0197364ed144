"""`fakexport lock`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fakexport.cli.checks import CheckedCall, Checks
from fakexport.cli.lock_session import LOCK_NAME, LockSession, lock_session
from fakexport.cli.options import (
    Adapter,
    AdapterMode,
    Assume,
    CacheForm,
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
    Parallel,
    Profiles,
    Strict,
    Target,
    UseCache,
    Workload,
)
from fakexport.cli.project_file import CheckOptions, project_file_of
from fakexport.cli.streams import write_output

if TYPE_CHECKING:
    from fakexport.report import ProjectReport, Report


def lock_command(
    context: typer.Context,
    source: OptionalSource = None,
    target: Target = None,
    device_map: DeviceMap = None,
    dtype: Dtype = None,
    input_: ExampleInputs = None,
    dynamic: DynamicDims = None,
    strict: Strict = None,
    use_cache: UseCache = None,
    workload: Workload = "forward",
    cache_length: CacheLength = None,
    cache_form: CacheForm = "inputs",
    component: Component = None,
    adapter: Adapter = None,
    adapter_mode: AdapterMode = "apart",
    parallel: Parallel = None,
    assume: Assume = None,
    no_progress: NoProgress = False,
    profiles: Profiles = None,
    library: Libraries = None,
    debug: Debug = False,
) -> None:
    """Check a model, and write to fakexport.lock what it exports to: `fakexport check --locked` compares.

    Without a SOURCE, lock all of those that [tool.fakexport] in pyproject.toml lists, and drop other entries.

    Exit code 0: every target exports without errors. 1: one does not, which is what the lock says now. 2: bad
    usage or environment.
    """
    project = project_file_of(context)
    lock = lock_session(project, is_updating=True, is_whole=source is None, accept="")
    checks = Checks(
        project=project,
        given=CheckOptions(
            target=target or None,
            device_map=device_map,
            dtype=dtype,
            inputs=input_ or None,
            dynamic=dynamic or None,
            strict=strict,
            use_cache=use_cache,
            assume=assume or None,
            libraries=library or None,
        ),
        call=CheckedCall(
            workload=workload,
            cache_length=cache_length,
            cache_form=cache_form,
            component=component,
            adapter=adapter,
            adapter_mode=adapter_mode,
            parallel=parallel,
        ),
        lock=lock,
        is_progress_shown=not no_progress,
        is_debug=debug,
    )
    code = checks.run(source, _Nothing())
    if lock.is_written:
        write_output(_listing(lock))
    if code:
        raise typer.Exit(code)


class _Nothing:
    """The reports are those of `fakexport check`."""

    def write_part(self, report: Report) -> None: ...

    def write_end(self, found: ProjectReport, *, root: Path) -> None: ...


def _listing(lock: LockSession) -> str:
    """Return a line per entry: what became of it, and its verdict."""
    lines = [
        f"{what}: {entry.source} for {entry.target}: {entry.verdict}"
        + ("" if entry.program is None else f", {entry.program.digest[:19]}")
        for what, entry in lock.entries()
    ]
    return "".join(f"{line}\n" for line in (*lines, f"wrote {LOCK_NAME}"))
