"""The machine that code is compiled for: its processor's extensions, and its compiler."""

from __future__ import annotations

import platform
import shutil
import subprocess

import torch

from fakexport._torch.inductor import compiler_command
from fakexport._version import __version__

from ..artifact import DeployError

# A compiler takes these only where the source asks for them by name, and Inductor's does not.
_NEVER_CHOSEN = frozenset({"aes", "clflush", "clflushopt", "clwb", "sha", "sse4a"})


def machine_here() -> str:
    """Return the processor architecture: `x86_64`, `aarch64`."""
    return platform.machine()


def versions_here() -> dict[str, str]:
    """Return the versions of the packages that influence the code."""
    return {"fakexport": __version__, "torch": str(torch.__version__)}


def instructions_here(device: str) -> tuple[str, ...]:
    """Return what the code may use: the processor's extensions, sorted; or the GPU's capability.

    Inductor compiles only for the processor that it runs on (`-march=native`). On one that lacks an
    extension, the first unknown instruction kills the process.
    """
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return (f"sm_{major}{minor}",)
    found = torch.cpu.get_capabilities()
    return tuple(sorted(name for name, has in found.items() if has is True and name not in _NEVER_CHOSEN))


def compiler_version() -> str:
    """Return the first line of the version text of the C++ compiler that will be used.

    Raises:
        DeployError: there is none.
    """
    command = compiler_command()
    if command is None or shutil.which(command) is None:
        raise DeployError(
            "AOTInductor needs a C++ compiler and none was found: `apt install g++`, or name one in CXX"
        )
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeployError(
            f"the C++ compiler {command} does not run: {done.stderr.strip() or 'no reason given'}"
        )
    return f"{command}: {(done.stdout.splitlines() or [''])[0]}"
