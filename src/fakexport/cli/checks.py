"""Convert the options of `check` and `export` to a request, and check all sources of `[tool.fakexport]`."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fakexport.cli.check_output import CheckOutput
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
from fakexport.cli.project_file import CheckOptions, ModelOptions, ProjectFile, ProjectFileError
from fakexport.cli.quiet import quiet
from fakexport.cli.streams import write_error_line
from fakexport.models import import_library, library_of

if TYPE_CHECKING:
    from fakexport.exporting.capture import Request
    from fakexport.report import ProjectReport, Report


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """Options for the cache, an adapter and sharding. `[tool.fakexport]` cannot set them."""

    max_cache_len: CacheLength = None
    cache_form: CacheForm = "inputs"
    adapter: Adapter = None
    adapter_mode: AdapterMode = "separate"
    parallel: Parallel = None


@dataclass(frozen=True, kw_only=True)
class CheckedCall(CallOptions):
    """`CallOptions`, and the options that select the workload and the component to check."""

    workload: Workload = "forward"
    component: Component = None


def check_call(
    source: str, options: ModelOptions, call: CallOptions, *, target: list[str] | None, **others: Any
) -> Request:
    """Convert a command's options to a `Request`; `others` are further fields of the request."""
    from fakexport.exporting.capture import Request

    return Request(
        source=source,
        target=target or ["cpu"],
        device_map=options.device_map,
        dtype=options.dtype,
        inputs=options.inputs or [],
        dynamic_shapes=options.dynamic or None,
        strict=bool(options.strict),
        use_cache=bool(options.use_cache),
        trust_remote_code=bool(options.trust_remote_code),
        assume=options.assume or (),
        prepare=partial(load_libraries, options.libraries) if options.libraries else None,
        **vars(call),
        **others,
    )


# `libraries` and `runtime` do not change the program; `target` is part of the key of a lock entry.
_NOT_ASKED = ("target", "libraries", "runtime")


def asked_options(options: CheckOptions, call: CheckedCall) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each option that affects the exported program and is not the default."""
    for name, value in vars(options).items():
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
    output: CheckOutput,
    is_debug: bool,
) -> ProjectReport:
    """Check all sources of a project one after another, in the project's folder.

    A report is written as soon as it is complete, unless the output is one document for all reports.
    """
    if project is None or not project.sources:
        raise ProjectFileError(
            "no SOURCE given, and no pyproject.toml in this folder or its parents lists `sources` in "
            "[tool.fakexport]; see `fakexport check --help`"
        )
    from fakexport.report import ProjectReport

    sources = [source for source, _ in project.sources]
    if len(sources) > 1 and len({library_of(source) for source in sources}) == 1:
        with quiet(is_debug=is_debug):
            import_library(sources[0])  # Import it once, before the processes for the sources are forked.
    reports: list[Report] = []
    refused: dict[str, str] = {}
    with contextlib.chdir(project.path.parent):
        for source, options in project.located_sources():
            try:
                report = check(source, given.over(options))
            except (Exception, SystemExit) as error:
                refused[source] = _reason(source, error, is_debug=is_debug)
                continue
            output.write_part(report)
            reports.append(report)
        found = ProjectReport(tuple(reports), refused)
        output.write_end(found, root=Path.cwd())
    return found


def _reason(source: str, error: BaseException, *, is_debug: bool) -> str:
    """Print and return the reason why a source cannot be checked. Reraise an error that shows a bug."""
    from fakexport.cli.faults import usage_fault

    reason = usage_fault(error)
    if reason is None:
        raise error
    if is_debug:
        write_error_line("".join(traceback.format_exception(error)).rstrip())
    write_error_line(f"error: {source}: {reason}")
    return reason
