"""Checking every source of `[tool.fakexport]` in one process."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from fakexport.cli.options import OutputFormat
from fakexport.cli.project_file import CheckOptions, ProjectFile, ProjectFileError
from fakexport.cli.streams import write_error_line, write_formatted

if TYPE_CHECKING:
    from fakexport.report import Report


def check_project(
    project: ProjectFile | None,
    given: CheckOptions,
    check: Callable[[str, CheckOptions], Report],
    *,
    render: Callable[[Report], str],
    output_format: OutputFormat,
    is_debug: bool,
) -> int:
    """Check the sources in the folder of their file, one after another; return the exit code.

    A report is written as soon as it is complete, except for JSON, which is one document.

    Args:
        project: The file that lists the sources.
        given: Options of the command line, which come first.
        check: Checks one source.
        render: Renders one report as text.
        output_format: Format of the reports.
        is_debug: Show the traceback if a source is refused.
    Raises:
        ProjectFileError: there are no sources.
    """
    if project is None or not project.sources:
        raise ProjectFileError(
            "no SOURCE given, and no pyproject.toml from here up has `sources` in [tool.fakexport]; "
            "see `fakexport check --help`"
        )
    from fakexport.report import ProjectReport, json_text, project_summary_line, project_to_dict

    reports: list[Report] = []
    refused: dict[str, str] = {}
    with contextlib.chdir(project.path.parent):
        for entry in project.sources:
            try:
                report = check(entry.source, given.over(project.options_of(entry)))
            except (Exception, SystemExit) as error:
                refused[entry.source] = _reason(entry.source, error, is_debug=is_debug)
                continue
            if output_format != "json":
                is_text = output_format == "text"
                write_formatted(f"{render(report)}\n" if is_text else render(report), output_format)
            reports.append(report)
    found = ProjectReport(tuple(reports), refused)
    is_json = output_format == "json"
    last = json_text(project_to_dict(found)) if is_json else f"{project_summary_line(found)}\n"
    write_formatted(last, output_format)
    return found.exit_code


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
