"""`[tool.fakexport]` in `pyproject.toml`: the models of a repository, and how they are checked."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from fakexport.cli.options import (
    Assume,
    DeviceMap,
    Dtype,
    DynamicDims,
    ExampleInputs,
    Libraries,
    Strict,
    Target,
    TrustRemoteCode,
    UseCache,
)
from fakexport.cli.streams import write_note
from fakexport.deploy import RUNTIMES
from fakexport.error import FakexportError, InvalidValue
from fakexport.files import fault_of_owner, open_regular
from fakexport.files.documents import (
    DocumentError,
    boolean,
    check_keys,
    field,
    items,
    mapping,
    parse_toml,
    source_text,
    text,
)
from fakexport.models import library_of, named_path

_FILE, _TABLE = "pyproject.toml", "tool.fakexport"
_MOST_BYTES = 16 << 20
_REPOSITORIES = (".git", ".hg", ".jj")


class ProjectFileError(FakexportError, ValueError):
    """The table `[tool.fakexport]` is invalid, or is missing but required. The message is a single line."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options for building and tracing a model, as the user wrote them. Omitted options are None."""

    device_map: DeviceMap = None
    dtype: Dtype = None
    inputs: ExampleInputs = None
    dynamic: DynamicDims = None
    strict: Strict = None
    use_cache: UseCache = None
    trust_remote_code: TrustRemoteCode = None
    assume: Assume = None
    libraries: Libraries = None

    def over(self, defaults: CheckOptions) -> CheckOptions:
        """Return these options. Options that are not given have the values of `defaults`."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        return replace(defaults, **given)


Runtime = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RUNTIME",
        help=f"Ask a runtime whether it takes the exported program: {', '.join(RUNTIMES)}. Repeatable. A "
        "program that it does not take is an error.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class CheckOptions(ModelOptions):
    """The options of `fakexport check` that `[tool.fakexport]` can also set."""

    target: Target = None
    runtime: Runtime = None


@dataclass(frozen=True)
class ProjectFile:
    """A `pyproject.toml` with a table `[tool.fakexport]`.

    Args:
        path: Path of the file; paths in the file are relative to its folder.
        sources: Models to check if the command line names none, in order, each with its own options.
        options: Options for all these sources, and for a source on the command line.
        profiles: Path of a file with device profiles.
    """

    path: Path
    sources: tuple[tuple[str, CheckOptions], ...]
    options: CheckOptions
    profiles: Path | None = None

    def options_for(self, source: str) -> CheckOptions:
        """Return the options for a source on the command line, which may be one of `sources`.

        A source with a library prefix, such as `hf:config.json`, must not run code because of a file in the
        project's folder, so the project's `libraries` and `trust-remote-code` do not apply to it.
        """
        asked = _place(source, Path.cwd())
        own = (options for source, options in self.sources if _place(source, self.path.parent) == asked)
        found = next(own, CheckOptions()).over(self.options)
        runs_code = {"libraries": "--library", "trust_remote_code": "--trust-remote-code"}
        for name, option in runs_code.items() if library_of(source) is not None else ():
            if getattr(found, name):
                key = name.replace("_", "-")
                write_note(f"`{key}` in {self.path} does not apply to {source}: pass {option}")
                found = replace(found, **{name: None})
        return self._located(found)

    def located_sources(self) -> Iterator[tuple[str, CheckOptions]]:
        """Yield each of `sources` with its options, which override those of the project."""
        return ((source, self._located(own.over(self.options))) for source, own in self.sources)

    def _located(self, options: CheckOptions) -> CheckOptions:
        """Return the options with paths relative to the working directory."""
        return replace(
            options,
            device_map=None if options.device_map is None else self._path(options.device_map),
            libraries=None if options.libraries is None else [self._path(text) for text in options.libraries],
        )

    def _path(self, written: str) -> str:
        """If the text is the path of a project file, return its path from the working directory."""
        folder = self.path.parent
        is_here = folder == Path.cwd() or not (folder / written).is_file()
        return written if is_here else os.path.relpath(folder / written)


def project_file_of(context: typer.Context) -> ProjectFile | None:
    """Return the nearest `pyproject.toml` with a table `[tool.fakexport]`, from the working directory up.

    A command runs the Python code that this file names. Therefore, the search ends at the root of the
    repository, the home folder, or a folder that other users can write to. Each command reads the file once.

    Raises:
        ProjectFileError: other users can write to the file, it is not TOML, or a key or value is invalid.
    """
    if _FILE not in context.meta:
        context.meta[_FILE] = _nearest(Path.cwd())
    found: ProjectFile | None = context.meta[_FILE]
    return found


def options_for(context: typer.Context, source: str, given: ModelOptions) -> CheckOptions:
    """Return the options of a command line. Options that are not given come from `[tool.fakexport]`."""
    project = project_file_of(context)
    return given.over(CheckOptions() if project is None else project.options_for(source))


def one_target(known: CheckOptions, given: str | None, command: str) -> str:
    """Return the target of a command that takes only one target. `given` is the value of `--target`.

    Raises:
        InvalidValue: no target is given, and `[tool.fakexport]` lists several targets.
    """
    if given is not None:
        return given
    target, *others = known.target or ["cpu"]
    if others:
        raise InvalidValue(
            f"[tool.fakexport] lists {len(others) + 1} targets, but {command} takes one: choose it with "
            "--target"
        )
    return target


def _nearest(here: Path) -> ProjectFile | None:
    for folder in (here, *here.parents):
        if folder != here and fault_of_owner(folder.stat()) is not None:
            return None
        path = folder / _FILE
        if path.is_file() and (table := _table(path)) is not None:
            return _read(path, table)
        if str(folder) == os.environ.get("HOME") or any((folder / name).exists() for name in _REPOSITORIES):
            return None
    return None


def _table(path: Path) -> Any:
    """Return the table `[tool.fakexport]`, or None. A text search avoids parsing most files without it."""
    with open_regular(path) as file:
        content = file.read(_MOST_BYTES)
        if b"fakexport" not in content:
            return None
        for place, status in ((path, file.status), (path.parent, path.parent.stat())):
            is_shared = place != path and bool(status.st_mode & stat.S_ISVTX)
            if (fault := fault_of_owner(status, is_shared=is_shared)) is not None:
                raise ProjectFileError(
                    f"{place} {fault}, so fakexport does not run the code that {path.name} names: correct "
                    "the owner or the permissions"
                )
    try:
        tool = parse_toml(content).get("tool", {})
    except DocumentError as error:
        raise ProjectFileError(f"{path}: {error}") from error
    return tool.get("fakexport") if isinstance(tool, dict) else None


def _read(path: Path, table: Any) -> ProjectFile:
    try:
        known = mapping(table)
        check_keys(known, {"sources", "profiles", *_READERS})
        sources = field(known, "sources", lambda value: items(value, _source), default=[])
        profiles = field(known, "profiles", text) if "profiles" in known else None
        located = None if profiles is None else path.parent / profiles
        return ProjectFile(path, tuple(sources), _options(known), located)
    except DocumentError as error:
        place = f"{_TABLE}.{error.place}" if error.place else _TABLE
        raise ProjectFileError(f"{path}: {place}: {error.reason}") from error


def _source(value: Any) -> tuple[str, CheckOptions]:
    """Read an entry of `sources`: a string such as `model.py:factory`, or a table with further options."""
    if isinstance(value, str):
        return source_text(value), CheckOptions()
    if not isinstance(value, dict):
        raise DocumentError(f"expected a string or a table, got {type(value).__name__}")
    check_keys(value, {"source", *_READERS})
    return field(value, "source", source_text), _options(value)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise DocumentError(f"expected a string or a list, got {type(value).__name__}")
    return items(value, text)


# Type of an option -> function that reads its value in the table.
_BY_TYPE: Mapping[Any, Callable[[Any], Any]] = {
    str | None: text,
    bool | None: boolean,
    list[str] | None: _texts,
}
_READERS = {name.replace("_", "-"): _BY_TYPE[kind] for name, kind in get_type_hints(CheckOptions).items()}


def _options(table: dict[str, Any]) -> CheckOptions:
    given = {key: field(table, key, _READERS[key]) for key in table if key in _READERS}
    return CheckOptions(**{key.replace("-", "_"): value for key, value in given.items()})


def _place(source: str, folder: Path) -> str:
    """Return a source for comparisons: with the absolute path of its file or folder, if it has one."""
    prefix, path, rest = named_path(source, folder) or ("", "", source)
    return f"{prefix}{(folder / path).resolve()}{rest}" if path else source


def know_profiles(context: typer.Context, file: Path | None) -> Path | None:
    """Register the device profiles of a file, by default the file in [tool.fakexport], for this command."""
    if context.resilient_parsing:
        return file
    project = project_file_of(context) if file is None else None
    chosen = project.profiles if project is not None else file
    if chosen is not None:
        from fakexport.emulation.devices import device_profiles

        context.with_resource(device_profiles(chosen))
    return chosen


Profiles = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        callback=know_profiles,
        help="Load your own device profiles from a .toml or .json file. Default: `profiles` of "
        "`[tool.fakexport]`.",
    ),
]
