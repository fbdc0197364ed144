"""`fakexport check`."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from fakexport.cli.check_output import CheckOutput, parse_writes
from fakexport.cli.checks import CheckedCall, Checks
from fakexport.cli.lock_session import LockSession, lock_session
from fakexport.cli.option_groups import grouped_options
from fakexport.cli.options import Debug, HtmlPage, NoProgress, OptionalSource, OutputFormat
from fakexport.cli.project_file import CheckOptions, Profiles, ProjectFile, project_file_of


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
    html: HtmlPage = None,
    locked: Annotated[
        bool,
        typer.Option("--locked", help="Compare with fakexport.lock: what moved is an error, FE002 or FE003."),
    ] = False,
    update_lock: Annotated[
        bool, typer.Option("--update-lock", help="Write what is found to fakexport.lock.")
    ] = False,
    verify_fixes: Annotated[
        bool,
        typer.Option(
            "--verify-fixes/--no-verify-fixes",
            help="Apply each fix to a copy of the model and check that, for up to 60 seconds.",
        ),
    ] = True,
    no_progress: NoProgress = False,
    profiles: Profiles = None,
    debug: Debug = False,
) -> None:
    """Check whether a model exports for each target, how the programs differ, and what to fix.

    Without a SOURCE, check all of those that [tool.fakexport] in pyproject.toml lists.

    Exit code 0: every target exports without errors. 1: an export failed or errors were reported. 2: bad
    usage or environment.
    """
    output = CheckOutput(format_, parse_writes(write or []), is_project=source is None, html=html)
    project = project_file_of(context)
    checks = Checks(
        project=project,
        given=options,
        call=call,
        lock=_lock(context, project, is_whole=source is None, is_locked=locked, is_updating=update_lock),
        is_progress_shown=not no_progress,
        is_debug=debug,
        has_tried_fixes=verify_fixes,
    )
    if code := checks.run(source, output):
        raise typer.Exit(code)


def _lock(
    context: typer.Context, project: ProjectFile | None, *, is_whole: bool, is_locked: bool, is_updating: bool
) -> LockSession | None:
    if is_locked and is_updating:
        raise typer.BadParameter("--locked compares with the lock, --update-lock replaces it: give one")
    if not (is_locked or is_updating):
        return None
    given: tuple[str, ...] = context.obj or ()
    accept = shlex.join(["fakexport", *("--update-lock" if part == "--locked" else part for part in given)])
    return lock_session(project, is_updating=is_updating, is_whole=is_whole, accept=accept)
