"""Import a Python file by its path without changing `sys.path`, or a module by its name."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.files import read_file
from fakexport.models.sources.source_error import (
    SourceError,
    did_you_mean,
    first_line,
    how_to_install,
    pip_command,
)

# The modules that `importable` left in `sys.modules`: name -> module and its folder. They are listed here
# because searching `sys.modules`, which has thousands of modules, several times per check would be slow.
_left: dict[str, tuple[ModuleType, str]] = {}
_MOST_BYTES = 64 << 20


def import_file(path: Path, written: str | None = None) -> ModuleType:
    """Import a file under a name that no package has. The file is run even if it was imported before.

    The name is derived from the file's name and contents, not from its path, because class names become part
    of exported programs. `written` is the file's name in messages.
    """
    digest = hashlib.sha256(_content(path)).hexdigest()[:8]
    name = f"fakexport_source_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if spec is None or spec.loader is None:
        raise SourceError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and typing look up the module of a class there.
    try:
        with torch_logs_silenced():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise SourceError(_not_imported(path, error, written)) from error
    return module


def new_package(folder: Path) -> str:
    """Make the files of a folder importable as a package, and return its name.

    The files are run even if they were imported before. The name is derived from their names and contents.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(_content(path)).digest())
    name = f"fakexport_source_{digest.hexdigest()[:8]}"
    for known in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[known]
    package = ModuleType(name)
    package.__path__ = [str(folder.absolute())]
    sys.modules[name] = package
    return name


def import_from(package: str, module: str, folder: Path) -> ModuleType:
    """Import a file of a folder, given the package that `new_package` returned."""
    path = folder / f"{module}.py"
    try:
        with torch_logs_silenced():
            return importlib.import_module(f"{package}.{module}")
    except (Exception, SystemExit) as error:
        raise SourceError(_not_imported(path, error)) from error


def check_file(path: Path) -> None:
    """Check that a file can be read."""
    _content(path)


def forget_modules(folder: Path) -> None:
    """Remove a folder's modules that `importable` left in `sys.modules`, so that they are run again."""
    for name, (module, owner) in list(_left.items()):
        if owner == str(folder):
            del _left[name]
            if sys.modules.get(name) is module:
                del sys.modules[name]


def import_module(name: str, hint: str = "") -> ModuleType:
    """Import a module by its name. A message that it does not exist ends with `hint`."""
    try:
        with torch_logs_silenced():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            command = pip_command(error.name)
            rest = hint if command is None else f": run `{command}`"
            raise SourceError(f"no module named {error.name!r}{rest}") from error
        raise SourceError(f"{name} cannot be imported: {first_line(error)}") from error
    except (Exception, SystemExit) as error:
        raise SourceError(f"{name} cannot be imported: {first_line(error)}") from error


def _content(path: Path) -> bytes:
    try:
        return read_file(path, most_bytes=_MOST_BYTES)
    except FileNotFoundError as error:
        siblings = path.parent.glob("*.py") if path.parent.is_dir() else ()
        near = did_you_mean(path.name, (sibling.name for sibling in siblings))
        raise SourceError(f"no such file: {path}{near}") from error
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from error


def _not_imported(path: Path, error: BaseException, written: str | None = None) -> str:
    install = how_to_install(error)
    text = f"{written or path} cannot be imported: {first_line(error)}{_place(error, path)}"
    return text + (f"; {install}" if install else "")


def _place(error: BaseException, path: Path) -> str:
    """Return the last traceback line in the folder of the user's file: ` at line 3: import nothing`."""
    file = path.absolute()
    if isinstance(error, SyntaxError):
        return "" if error.lineno is None else f" at line {error.lineno}{_other(error.filename, file)}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == file.parent]
    return f" at line {own[-1].lineno}{_other(own[-1].filename, file)}: {own[-1].line}" if own else ""


def _other(name: str | None, file: Path) -> str:
    return f" of {Path(name).name}" if name is not None and Path(name) != file else ""


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Make the modules in a folder importable within the block. They have priority over all other modules.

    Imported modules stay in `sys.modules`. If an earlier source imported a module with the same name from a
    different folder, that module is removed.
    """
    _forget_namesakes(folder)
    before = set(sys.modules)
    # Imports in other threads iterate over the list. If an item were removed in place, they would skip one.
    sys.path = [str(folder), *sys.path]
    try:
        yield
    finally:
        rest = list(sys.path)
        if str(folder) in rest:  # The imported file may have removed it.
            rest.remove(str(folder))
            sys.path = rest
        for name in set(sys.modules) - before:
            if _is_found_in(folder, name):
                _left[name] = sys.modules[name], str(folder)


def _forget_namesakes(folder: Path) -> None:
    for name, (module, owner) in list(_left.items()):
        if owner == str(folder) or sys.modules.get(name) is not module:
            continue
        top = name.partition(".")[0]
        if any((folder / own).exists() for own in (f"{top}.py", top)):
            sys.modules.pop(name, None)
            _left.pop(name, None)


def _is_found_in(folder: Path, name: str) -> bool:
    """Return whether `import name` loads a module of the folder, not of a virtual environment below it."""
    module, top = sys.modules[name], name.partition(".")[0]
    place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return place is not None and any(Path(place).is_relative_to(folder / own) for own in (f"{top}.py", top))
