"""The checks of one command: one source, or all of `[tool.fakexport]`."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fakexport._libraries import import_library, library_of
from fakexport.cli.lock_session import LockSession
from fakexport.cli.options import (
    Adapter,
    AdapterMode,
    CacheForm,
    CacheLength,
    Component,
    Parallel,
    Workload,
    load_libraries,
)
from fakexport.cli.progress_display import progress_on_stderr
from fakexport.cli.project_file import CheckOptions, ModelOptions, ProjectFile, ProjectFileError
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_error_line

if TYPE_CHECKING:
    from fakexport.checking import CheckCall
    from fakexport.report import Progress, ProjectReport, Report


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """Which call of a model is exported; `[tool.fakexport]` has none of these options."""

    cache_length: CacheLength = None
    cache_form: CacheForm = "inputs"
    adapter: Adapter = None
    adapter_mode: AdapterMode = "apart"
    parallel: Parallel = None


@dataclass(frozen=True, kw_only=True)
class CheckedCall(CallOptions):
    """Which part of a model is checked, and for which call."""

    workload: Workload = "forward"
    component: Component = None


class ReportOutput(Protocol):
    """Where the reports go."""

    def write_part(self, report: Report) -> None:
        """Write the report on one source."""

    def write_end(self, found: ProjectReport, *, root: Path) -> None:
        """Write what comes after them."""


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What a command checks, and how.

    Args:
        project: The nearest `pyproject.toml` with a table.
        given: Options of the command line.
        call: Which part of the model.
        lock: The lock to compare with or to write; None without one.
        is_progress_shown, is_debug: As on the command line.
        has_tried_fixes: Whether fixes are tried.
    """

    project: ProjectFile | None
    given: CheckOptions
    call: CheckedCall
    lock: LockSession | None
    is_progress_shown: bool
    is_debug: bool
    has_tried_fixes: bool = False

    def run(self, source: str | None, output: ReportOutput) -> int:
        """Check a source, or all of the project, and return the exit code.

        Args:
            source: As written; None for all of the project.
            output: Takes the reports.
        """

        def checked(source: str, options: CheckOptions) -> Report:
            shown = progress_on_stderr(is_shown=self.is_progress_shown)
            with shown as on_progress, quiet(is_debug=self.is_debug):
                asked = check_call(source, options, self.call, target=options.target)
                report = self._check(asked, on_progress)
                if self.lock is not None:
                    report = self.lock.compared(report, source, dict(_asked(options, self.call)))
                return report

        if source is None:
            self._import_shared_library()
            ended = check_project(self.project, self.given, checked, output=output, is_debug=self.is_debug)
            found, refused = ended.exit_code, len(ended.refused)
        else:
            known = CheckOptions() if self.project is None else self.project.options_for(source)
            report, refused = checked(source, self.given.over(known)), 0
            _write(report, output)
            found = 0 if report.is_clean else 1
        has_stale = self.lock is not None and self.lock.end(refused=refused)
        return max(found, int(has_stale))

    def _check(self, asked: CheckCall, on_progress: Callable[[Progress], None] | None) -> Report:
        from fakexport.checking import Wanted, report_on

        wanted = Wanted(fingerprints=self.lock is not None, tried_fixes=self.has_tried_fixes)
        return report_on(asked, on_progress=on_progress, wanted=wanted)

    def _import_shared_library(self) -> None:
        """Import the library of all sources once, and none that only some of them name."""
        sources = [entry.source for entry in (self.project.sources if self.project is not None else ())]
        if len(sources) > 1 and len({library_of(source) for source in sources}) == 1:
            with quiet(is_debug=self.is_debug):
                import_library(sources[0])


def _write(report: Report, output: ReportOutput) -> None:
    from fakexport.report import ProjectReport

    output.write_part(report)
    output.write_end(ProjectReport((report,), {}), root=Path.cwd())


def check_call(
    source: str, options: ModelOptions, call: CallOptions, *, target: list[str] | None, **others: Any
) -> CheckCall:
    """Return what the options of a command ask for; `others` are arguments of `CheckCall`."""
    from fakexport.checking import CheckCall

    return CheckCall(
        source=source,
        target=target or ["cpu"],
        device_map=options.device_map,
        dtype=options.dtype,
        inputs=options.inputs or [],
        dynamic_shapes=options.dynamic or None,
        strict=bool(options.strict),
        use_cache=bool(options.use_cache),
        assume=options.assume or (),
        prepare=partial(load_libraries, options.libraries) if options.libraries else None,
        **vars(call),
        **others,
    )


# Decide nothing of the program, or are the key of an entry themselves.
_NOT_ASKED = ("target", "libraries")


def _asked(options: CheckOptions, call: CheckedCall) -> Iterator[tuple[str, str]]:
    """Yield the options that decide what is exported, as on the command line; defaults are left out."""
    given = {known.name: getattr(options, known.name) for known in fields(options)}
    for name, value in given.items():
        if name not in _NOT_ASKED and value:
            yield name.replace("_", "-"), ", ".join(value) if isinstance(value, list) else _text(value)
    for known in fields(call):
        value = getattr(call, known.name)
        if value != known.default:
            yield known.name.replace("_", "-"), _text(value)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
        given: Options of the command line, which come first.
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
