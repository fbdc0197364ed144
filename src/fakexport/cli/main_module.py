"""Running a script or a module as `python` would: as `__main__`, with its arguments, errors and exit code."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from fakexport.error import FakexportError


class MainModuleError(FakexportError, ValueError):
    """There is no such module, or it cannot be run. One line."""


def run_as_main(
    name: str, arguments: Sequence[str], *, is_module: bool, around: AbstractContextManager[Any]
) -> int:
    """Run a Python file or a module, and return its exit code.

    What it raises is shown as the interpreter shows it, by `sys.excepthook`, without frames of ours; then the
    exit code is 1. Afterwards `sys` is as before.

    Args:
        name: Path of a file, or name of a module, as `python` and `python -m` take them.
        arguments: The rest of its `sys.argv`.
        around: Entered before its first statement; the module that is run is imported inside.
    Raises:
        OSError: the file cannot be read.
        MainModuleError: there is no such module, or it has no code to run.
        KeyboardInterrupt: as it comes.
    """
    folder = Path.cwd() if is_module else Path(name).resolve().parent
    main = ModuleType("__main__")
    with _as_main(main, name, arguments, folder):
        source = None if is_module else _content(name)
        with around:
            try:
                code = _of_module(main, name) if source is None else _of_file(main, name, source)
                exec(code, vars(main))
            except (MainModuleError, KeyboardInterrupt):
                raise
            except SystemExit as ended:
                return _exit_code(ended)
            except BaseException as error:
                sys.excepthook(type(error), error, _own_frames(error))
                return 1
    return 0


def _content(name: str) -> bytes:
    with io.open_code(str(Path(name).absolute())) as file:
        return file.read()


def _of_file(main: ModuleType, name: str, source: bytes) -> CodeType:
    path = os.path.join(Path.cwd(), name)  # noqa: PTH118 (as the interpreter does: `./` stays)
    vars(main).update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    return compile(source, path, "exec", dont_inherit=True)


def _of_module(main: ModuleType, name: str) -> CodeType:
    spec = _spec(name)
    code = spec.loader.get_code(spec.name) if isinstance(spec.loader, InspectLoader) else None
    if code is None:
        raise MainModuleError(f"the module {name!r} has no Python code to run")
    sys.argv[0] = spec.origin or name
    vars(main).update(
        __file__=spec.origin,
        __cached__=spec.cached,
        __loader__=spec.loader,
        __package__=spec.parent,
        __spec__=spec,
    )
    return code


def _spec(name: str) -> ModuleSpec:
    """The spec of a module; that of `__main__` in a package."""
    try:
        is_name = all(part.isidentifier() for part in name.split("."))
        spec = importlib.util.find_spec(name) if is_name else None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # Its package needs another one.
        spec = None
    except ValueError:  # Such as `__main__`, which is a module without a spec.
        spec = None
    if spec is None:
        raise MainModuleError(f"no module named {name!r}")
    if spec.submodule_search_locations is None:
        return spec
    if name.endswith(".__main__"):
        raise MainModuleError(f"{name!r} is a package, and cannot be run as a module")
    try:
        return _spec(f"{name}.__main__")
    except MainModuleError as error:
        raise MainModuleError(f"{name!r} is a package without __main__, and cannot be run") from error


@contextmanager
def _as_main(main: ModuleType, name: str, arguments: Sequence[str], folder: Path) -> Iterator[None]:
    """`sys` as the interpreter sets it up, which puts a folder first in the path."""
    before = sys.modules.get("__main__"), sys.argv, list(sys.path)
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"], sys.argv = main, [name, *arguments]
    if not sys.flags.safe_path:
        sys.path[:1] = [str(folder)]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before[1:]
        if before[0] is not None:
            sys.modules["__main__"] = before[0]


def _exit_code(ended: SystemExit) -> int:
    """What the interpreter makes of `sys.exit(code)`."""
    if ended.code is None:
        return 0
    if isinstance(ended.code, int):
        return ended.code
    sys.stderr.write(f"{ended.code}\n")
    return 1


def _own_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame outside of this file on."""
    link = error.__traceback__
    while link is not None and link.tb_frame.f_code.co_filename == __file__:
        link = link.tb_next
    error.__traceback__ = link
    return link
