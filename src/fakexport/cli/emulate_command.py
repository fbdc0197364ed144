"""`fakexport emulate`: run a script or a module with the same arguments, errors and exit code as `python`."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Annotated, Any, cast

import typer

from fakexport.cli.project_file import Profiles
from fakexport.error import FakexportError


def emulate_command(
    topology: Annotated[
        str,
        typer.Argument(
            metavar="TOPOLOGY", help="Devices to emulate, such as `H100`, `8xH100` or `cpu+2xA100-40GB`."
        ),
    ],
    script: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT|-m MODULE [ARGUMENTS]",
            help="Python file to run, or -m and a module, followed by its arguments.",
        ),
    ],
    fake: Annotated[
        bool, typer.Option("--fake", help="Make every tensor fake, for a script that creates real tensors.")
    ] = False,
    profiles: Profiles = None,
) -> None:
    """Run a Python script or module that can create fake tensors on the emulated devices.

    The script runs as with `python SCRIPT ARGUMENTS`. Real tensors still need real devices: create the model
    and its inputs in a FakeTensorMode, or use --fake. Options come before TOPOLOGY.

    Exit code: the exit code of the script; 2 for bad usage.
    """
    if script[0].startswith("-") and (script[0] != "-m" or len(script) == 1):
        raise typer.BadParameter("TOPOLOGY must be followed by a script, or by -m and a module")
    from fakexport.emulation.devices import emulate
    from fakexport.emulation.fake import fake_mode

    is_module = script[0] == "-m"
    name, *arguments = script[1:] if is_module else script
    around = fake_mode(topology) if fake else emulate(topology)
    if code := run_as_main(name, arguments, is_module=is_module, around=around):
        raise typer.Exit(code)


class MainModuleError(FakexportError, ValueError):
    """The module does not exist or cannot be run. The message is one line."""


def run_as_main(
    name: str, arguments: Sequence[str], *, is_module: bool, around: AbstractContextManager[Any]
) -> int:
    """Run a Python file or a module, and return its exit code.

    If the code raises an exception, `sys.excepthook` prints it without frames of this file, and the exit code
    is 1. Afterwards, `sys.argv`, `sys.path` and `sys.modules["__main__"]` are restored.

    Args:
        name: Path of a file, or name of a module, as for `python` and `python -m`.
        arguments: The command-line arguments, which follow the name in `sys.argv`.
        around: Context in which the code is imported and run.
    Raises:
        OSError: the file cannot be read.
        MainModuleError: the module does not exist, or has no Python code.
        KeyboardInterrupt: the run was interrupted.
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
    path = os.path.join(Path.cwd(), name)  # noqa: PTH118 (like the interpreter, keep `./`)
    vars(main).update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    return compile(source, path, "exec", dont_inherit=True)


def _of_module(main: ModuleType, name: str) -> CodeType:
    # This private function of `runpy` is also what `python -m` and pdb call.
    _, spec, code = runpy._get_module_details(name, MainModuleError)  # type: ignore[attr-defined]
    sys.argv[0] = spec.origin or name
    vars(main).update(
        __file__=spec.origin,
        __cached__=spec.cached,
        __loader__=spec.loader,
        __package__=spec.parent,
        __spec__=spec,
    )
    return cast("CodeType", code)


@contextmanager
def _as_main(main: ModuleType, name: str, arguments: Sequence[str], folder: Path) -> Iterator[None]:
    """Set up `sys` as the interpreter does, with `folder` first in `sys.path`. Restore `sys` on exit."""
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
    """Return the exit code of `sys.exit(code)`. Like the interpreter, print a code that is not an int."""
    if ended.code is None:
        return 0
    if isinstance(ended.code, int):
        return ended.code
    sys.stderr.write(f"{ended.code}\n")
    return 1


def _own_frames(error: BaseException) -> TracebackType | None:
    """Remove the leading frames of this file from an error's traceback, and return the rest."""
    link = error.__traceback__
    while link is not None and link.tb_frame.f_code.co_filename == __file__:
        link = link.tb_next
    error.__traceback__ = link
    return link
