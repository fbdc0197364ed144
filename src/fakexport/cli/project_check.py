"""Checking every source of `[tool.fakexport]` in one process."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fakexport.cli.project_file import CheckOptions, ProjectFile, ProjectFileError
from fakexport.cli.streams import write_error_line

if TYPE_CHECKING:
    from fakexport.cli.checks import ReportOutput
    from fakexport.report import ProjectReport, Report


def check_project(
    project: ProjectFile | None,
    given: CheckOptions,
    check: Callable[[str, CheckOptions], Report],
    *,
    output: ReportOutput,
    is_debug: bool,
) -> ProjectReport:
    """Check the sources in the folder of their file, one after another; return what was found.

    A report is written as soon as it is complete, unless all reports are one document.

    Args:
        project: The file that lists the sources.
        given: Options of the command line, which come first.
        check: Checks one source.
        output: How the reports are written.
        is_debug: Show the traceback if a source is refused.
    Raises:
        ProjectFileError: there are no sources.
    """
    if project is None or not project.sources:
        raise ProjectFileError(
            "no SOURCE given, and no pyproject.toml from here up has `sources` in [tool.fakexport]; "
            "see `fakexport check --help`"
        )
    from fakexport.report import ProjectReport

    reports: list[Report] = []
    refused: dict[str, str] = {}
    with contextlib.chdir(project.path.parent):
        for entry in project.sources:
            try:
                report = check(entry.source, given.over(project.options_of(entry)))
            except (Exception, SystemExit) as error:
                refused[entry.source] = _reason(entry.source, error, is_debug=is_debug)
                continue
            output.write_part(report)
            reports.append(report)
        found = ProjectReport(tuple(reports), refused)
        output.write_end(found, root=Path.cwd())
    return found


def _reason(source: str, error: BaseException, *, is_debug: bool) -> str:
    """Why a source cannot be checked, which is shown at once; a fault of our own ends the command."""
    from fakexport.cli.faults import usage_fault

    reason = usage_fault(error)
    if reason is None:
        raise error
    if is_debug:
        write_error_line("".join(traceback.format_exception(error)).rstrip())
    write_error_line(f"error: {source}: {reason}")
    return reason
