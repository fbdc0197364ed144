"""The machine that code is compiled for: what its processor can do, and which compiler it has."""

from __future__ import annotations

import platform
import shutil
import subprocess

import torch

from fakexport._torch.inductor import compiler_command
from fakexport._version import __version__

from ..artifact import DeployError

__all__ = ["compiler_version", "instructions_here", "machine_here", "versions_here"]

# A compiler takes these only where the source asks for them by name, and Inductor's does not.
_NEVER_CHOSEN = frozenset({"aes", "clflush", "clflushopt", "clwb", "sha", "sse4a"})


def machine_here() -> str:
    """`x86_64`, `aarch64`."""
    return platform.machine()


def versions_here() -> dict[str, str]:
    """Of the packages that have a say in the code."""
    return {"fakexport": __version__, "torch": str(torch.__version__)}


def instructions_here(device: str) -> tuple[str, ...]:
    """What the code may make use of: the processor's extensions, sorted; or the GPU's capability.

    Inductor compiles for just the processor that it runs on (`-march=native`). On another one that lacks an
    extension, the process is ended by the first instruction that the processor does not know.
    """
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return (f"sm_{major}{minor}",)
    found = torch.cpu.get_capabilities()
    return tuple(sorted(name for name, has in found.items() if has is True and name not in _NEVER_CHOSEN))


def compiler_version() -> str:
    """The C++ compiler that will be used, in the first line that it says of itself.

    Raises:
        DeployError: there is none.
    """
    command = compiler_command()
    if command is None or shutil.which(command) is None:
        raise DeployError(
            "AOTInductor needs a C++ compiler, and none was found: `apt install g++`, or name one in CXX"
        )
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeployError(
            f"the C++ compiler {command} does not run: {done.stderr.strip() or 'no reason given'}"
        )
    return f"{command}: {(done.stdout.splitlines() or [''])[0]}"
