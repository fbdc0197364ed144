"""`fakexport check`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fakexport.cli.check_output import CheckOutput, parse_writes
from fakexport.cli.checks import CheckedCall, asked_options, check_call, check_project
from fakexport.cli.isolated_work import isolated
from fakexport.cli.lock_session import LockSession, lock_session
from fakexport.cli.options import (
    Debug,
    HtmlPage,
    NoProgress,
    OptionalSource,
    OutputFormat,
    Timeout,
    grouped_options,
)
from fakexport.cli.progress_display import progress_on_stderr
from fakexport.cli.project_file import CheckOptions, Profiles, ProjectFile, options_for, project_file_of
from fakexport.cli.quiet import quiet
from fakexport.deploy import check_runtimes

if TYPE_CHECKING:
    from fakexport.report import Report


@grouped_options
def check_command(
    context: typer.Context,
    source: OptionalSource = None,
    *,
    options: CheckOptions,
    call: CheckedCall,
    format_: Annotated[
        OutputFormat,
        typer.Option(
            "--format",
            help="Print text, JSON for scripts, annotations for GitHub Actions, SARIF for code scanning, "
            "or Markdown for a job summary.",
        ),
    ] = "text",
    write: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORMAT=FILE",
            help="Also write the report to a file, such as `sarif=report.sarif`. Repeatable.",
        ),
    ] = None,
    html: HtmlPage = None,
    locked: Annotated[
        bool,
        typer.Option(
            "--locked",
            help="Compare each program with `fakexport.lock`; a difference is an error (FE002, FE003).",
        ),
    ] = False,
    update_lock: Annotated[
        bool,
        typer.Option(
            "--update-lock",
            help="Write the exported programs to `fakexport.lock`, and accept every difference.",
        ),
    ] = False,
    verify_fixes: Annotated[
        bool,
        typer.Option(
            "--verify-fixes/--no-verify-fixes",
            show_default=False,
            help="Try each fix on a copy of the model before printing it, for up to 60 seconds. On by "
            "default.",
        ),
    ] = True,
    no_progress: NoProgress = False,
    timeout: Timeout = None,
    profiles: Profiles = None,
    debug: Debug = False,
) -> None:
    """Check whether a model exports for each target, how the programs differ, and what to fix.

    Without SOURCE, check every source that [tool.fakexport] in pyproject.toml lists. For an archive, ask the
    runtimes of --runtime whether they take its programs.

    Exit code 0: every target exports without errors. 1: an export failed or errors were reported. 2: bad
    usage or environment.
    """
    output = CheckOutput(format_, parse_writes(write or []), is_project=source is None, html=html)
    project = project_file_of(context)
    lock = _lock(context, project, is_whole=source is None, is_locked=locked, is_updating=update_lock)

    def checked(source: str, known: CheckOptions) -> Report:
        runtimes = check_runtimes(known.runtime or ())
        if source.endswith(".pt2"):
            others = [*(["target"] if options.target else []), *dict(asked_options(options, call))]
            return _of_archive(source, runtimes, known, others=others, has_lock=lock is not None, debug=debug)
        shown = progress_on_stderr(is_shown=not no_progress, limit_s=timeout)
        with shown as on_progress, quiet(is_debug=debug):
            from fakexport.checking import Wanted, report_on

            wanted = Wanted(fingerprints=lock is not None, tried_fixes=verify_fixes, runtimes=runtimes)
            request = check_call(source, known, call, target=known.target)
            report = report_on(request, on_progress=on_progress, wanted=wanted)
            return report if lock is None else lock.compared(report, source, dict(asked_options(known, call)))

    from fakexport.report import ProjectReport

    if source is None:
        found = check_project(project, options, checked, output=output, is_debug=debug)
    else:
        found = ProjectReport((checked(source, options_for(context, source, options)),), {})
        output.write_part(found.reports[0])
        output.write_end(found, root=Path.cwd())
    has_stale = lock is not None and lock.end(refused=len(found.refused))
    if code := max(found.exit_code, int(has_stale)):
        raise typer.Exit(code)


def _of_archive(
    path: str,
    runtimes: tuple[str, ...],
    known: CheckOptions,
    *,
    others: list[str],
    has_lock: bool,
    debug: bool,
) -> Report:
    if others or has_lock:
        said = f"--{others[0]} applies" if others else "--locked and --update-lock apply"
        raise typer.BadParameter(f"{said} to models, not to archives")
    if not runtimes:
        raise typer.BadParameter(
            f"{path} is exported already: ask runtimes about it with --runtime, or describe it with "
            "`fakexport inspect`"
        )

    def asked() -> Report:
        from fakexport.checking import report_on_archive

        return report_on_archive(path, runtimes)

    with quiet(is_debug=debug):
        return isolated(asked, known.libraries, runs_code=False)


def _lock(
    context: typer.Context, project: ProjectFile | None, *, is_whole: bool, is_locked: bool, is_updating: bool
) -> LockSession | None:
    if is_locked and is_updating:
        raise typer.BadParameter(
            "--locked compares with the lock, --update-lock replaces it: use only one of them"
        )
    if not (is_locked or is_updating):
        return None
    given: tuple[str, ...] = context.obj or ()
    accept = shlex.join(["fakexport", *("--update-lock" if part == "--locked" else part for part in given)])
    return lock_session(project, is_updating=is_updating, is_whole=is_whole, accept=accept)
