"""Processes forked from one that has imported torch, transformers and fakexport, and done nothing else.

The imports take some seconds, which hundreds of tests would pay. What is about the start itself (streams,
limits, what may be imported, variables that torch reads when it is imported) starts an interpreter instead.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["forking", "run_as_interpreter", "run_in_ranks", "run_module", "run_python"]

_PRELOADED = (
    "pydantic.fields",
    "pydantic.json_schema",
    "pydantic.type_adapter",
    "torch._dynamo",
    "torch.export._trace",
    "torch.export.pt2_archive",
    "transformers.modeling_utils",
    "typer._adapters",
    "safetensors.torch",
    "fakexport.cli.app",
    "fakexport.archive",
    "fakexport.exporting.capture",
    "fakexport.checking",
    "fakexport.deploy",
    "fakexport.report",
    "fakexport.archive.weights",
    "tests.warm",
)


def run_module(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs `python -m NAME ARGUMENTS`."""
    return _ended(["-m", name, *map(str, arguments)], Path.cwd())


def run_in_ranks(ranks: int, name: str, *arguments: object) -> list[subprocess.CompletedProcess[str]]:
    """Runs `python -m NAME ARGUMENTS` in several processes, with the variables that torchrun sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    command, folder = ["-m", name, *map(str, arguments)], Path.cwd()

    def run(rank: int) -> subprocess.CompletedProcess[str]:
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        return _ended(command, folder, {**os.environ, **store, **own})

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(run, range(ranks)))


def run_python(code: str, *arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `python -W ignore -c CODE ARGUMENTS`, in the folder."""
    return _ended(["-c", code, *map(str, arguments)], folder or Path.cwd())


def _ended(
    arguments: list[str], folder: Path, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    if sys.platform != "linux":  # Elsewhere a fork is not safe once libraries of the system are in use.
        command = [sys.executable, *(["-W", "ignore"] if arguments[0] == "-c" else []), *arguments]
        return subprocess.run(
            command, cwd=folder, env=dict(environment), capture_output=True, text=True, check=False
        )
    with tempfile.TemporaryDirectory() as streams:
        out, err = Path(streams, "out"), Path(streams, "err")
        process = forking().Process(target=_run, args=(arguments, folder, dict(environment), out, err))
        process.start()
        process.join()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(arguments, process.exitcode, out.read_text(), err.read_text())


def forking() -> multiprocessing.context.ForkServerContext:
    """Where a process is forked from the one with the imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED])
    return context


def _run(arguments: list[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path) -> None:
    for path, stream in ((out, 1), (err, 2)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), stream)
    run_as_interpreter(arguments, folder, environment)


def run_as_interpreter(arguments: list[str], folder: Path, environment: Mapping[str, str]) -> None:
    """Does what the interpreter does with its arguments."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, str(folder))
    kind, what, *rest = arguments
    if kind == "-m":
        sys.argv = [what, *rest]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        warnings.simplefilter("ignore")
        sys.argv = ["-c", *rest]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
