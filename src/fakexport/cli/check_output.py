"""Write the reports of `fakexport check`: in one format to stdout, in any format to files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import typer

from fakexport.cli.options import OutputFormat, write_file, write_page
from fakexport.cli.streams import WIDTH_OF_A_FILE, output_width, write_formatted

if TYPE_CHECKING:
    from fakexport.report import ProjectReport, Report

# Formats in which each report is written separately. In any other format, one document contains all reports.
_OF_PARTS = ("text", "github")


def parse_writes(given: Sequence[str]) -> tuple[tuple[OutputFormat, Path], ...]:
    """Parse the values of `--write FORMAT=FILE`, and make their paths absolute."""
    return tuple(_parse(text) for text in given)


def _parse(text: str) -> tuple[OutputFormat, Path]:
    formats: dict[str, OutputFormat] = {name: name for name in get_args(OutputFormat)}
    name, equals, path = text.partition("=")
    if not (equals and path):
        raise typer.BadParameter(f"--write takes FORMAT=FILE, such as sarif=report.sarif; got {text!r}")
    if name not in formats:
        raise typer.BadParameter(f"--write: unknown format {name!r}; choose one of {', '.join(formats)}")
    file = Path(path).absolute()
    if not file.parent.is_dir():
        raise typer.BadParameter(f"--write: the folder {file.parent} does not exist")
    return formats[name], file


@dataclass(frozen=True)
class CheckOutput:
    """Formats and files for the reports of a check: on stdout, and after the last check.

    `is_project` is whether the sources are those of `[tool.fakexport]`, even if there is only one.
    """

    format: OutputFormat
    files: tuple[tuple[OutputFormat, Path], ...] = ()
    is_project: bool = False
    html: Path | None = None

    def write_part(self, report: Report) -> None:
        """Write the report of one source to stdout, unless the format is one document for all reports."""
        if self.format in _OF_PARTS:
            write_formatted(_part(report, self.format, output_width(), self.is_project), self.format)

    def write_end(self, found: ProjectReport, *, root: Path) -> None:
        """Write the summary or the document to stdout, then the files and the HTML page."""
        if self.format not in _OF_PARTS:
            write_formatted(self._document(found, self.format, root), self.format)
        elif self.is_project:
            write_formatted(_end(found), self.format)
        for wanted, path in self.files:
            document = self._document(found, wanted, root)
            write_file(path, document.encode(errors="backslashreplace"))
        if self.html is not None:
            from fakexport.report import check_document, project_document

            shown = project_document(found) if self.is_project else check_document(found.reports[0])
            write_page(shown, self.html)

    def _document(self, found: ProjectReport, wanted: OutputFormat, root: Path) -> str:
        from fakexport.report import json_text, render_markdown, render_sarif, to_dict

        if wanted == "json":
            return json_text(to_dict(found if self.is_project else found.reports[0]))
        if wanted == "sarif":
            return render_sarif(found, root=root)
        if wanted == "markdown":
            return render_markdown(found)
        parts = [_part(report, wanted, WIDTH_OF_A_FILE, self.is_project) for report in found.reports]
        return "".join([*parts, _end(found)] if self.is_project else parts)


def _part(report: Report, wanted: OutputFormat, width: int, is_project: bool) -> str:
    from fakexport.report import render_github, render_report

    if wanted == "github":
        return render_github(report)
    return render_report(report, width=width) + "\n" * is_project


def _end(found: ProjectReport) -> str:
    from fakexport.report import project_summary_line

    return f"{project_summary_line(found)}\n"
