"""`fakexport lock`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fakexport.cli.checks import CheckedCall, Checks
from fakexport.cli.lock_session import LOCK_NAME, LockSession, lock_session
from fakexport.cli.option_groups import grouped_options
from fakexport.cli.options import Debug, NoProgress, OptionalSource
from fakexport.cli.project_file import CheckOptions, Profiles, project_file_of
from fakexport.cli.streams import write_output

if TYPE_CHECKING:
    from fakexport.report import ProjectReport, Report


@grouped_options
def lock_command(
    context: typer.Context,
    source: OptionalSource = None,
    *,
    options: CheckOptions,
    call: CheckedCall,
    no_progress: NoProgress = False,
    profiles: Profiles = None,
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
        given=options,
        call=call,
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
