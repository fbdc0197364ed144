"""The machine that code is compiled for: its devices, its processor's extensions, and its compiler."""

from __future__ import annotations

import platform
import shutil
import subprocess

import torch
from torch.export import ExportedProgram

from fakexport._torch.inductor import compiler_command
from fakexport._version import __version__
from fakexport.devices import Topology, exists_here
from fakexport.program import devices_of_program, retarget

from ..artifact import DeployError


class DeviceMissing(DeployError):
    """The devices to compile for are not here: why, as a clause, and what to run where they are, if known."""

    def __init__(self, reason: str, command: str | None = None) -> None:
        there = "copy the archive and the checkpoint to a machine that has it, and there"
        what = f"run `{command}`" if command else "compile it"
        super().__init__(f"{reason}; {there} {what}")
        self.reason = reason


def check_devices(program: ExportedProgram, target: str | None, *, command: str | None = None) -> None:
    """Refuse unavailable devices before anything is bound or compiled.

    Raises:
        DeviceMissing: a device is not available.
        DeployError: more than one accelerator.
        ValueError: no such target.
    """
    wanted = _accelerators(program, target)
    if len(wanted) > 1:
        raise DeployError(f"AOTInductor compiles for one accelerator, not for {', '.join(wanted)}")
    for device in wanted:
        if not device.startswith("cuda"):
            raise DeployError(
                f"AOTInductor packages for {device} are not supported: compile for the CPU or CUDA"
            )
        if not exists_here(device):
            raise DeviceMissing(
                (
                    f"AOTInductor queries the GPU that it compiles for, and {device} is not available on "
                    "this machine"
                ),
                command,
            )
        _check_capability(target, command)


def on_target(program: ExportedProgram, target: str | None) -> ExportedProgram:
    """Return the program on the devices of the target, which are available."""
    if target is None:
        return program
    wanted = Topology.parse(target).default_device
    present = [device for device in devices_of_program(program) if device != "meta"]
    if all(torch.device(device).type == torch.device(wanted).type for device in present):
        return program
    return retarget(program, dict.fromkeys(present, wanted))


def device_type(program: ExportedProgram) -> str:
    """Return `cuda` for a program that uses a GPU, else `cpu`."""
    types = {torch.device(device).type for device in devices_of_program(program)}
    return "cuda" if "cuda" in types else "cpu"


def _accelerators(program: ExportedProgram, target: str | None) -> tuple[str, ...]:
    if target is not None:
        return tuple(device.name for device in Topology.parse(target).accelerators)
    return tuple(device for device in devices_of_program(program) if device not in ("cpu", "meta"))


def _check_capability(target: str | None, command: str | None) -> None:
    """Check that a named GPU model is the available one: code for one GPU does not run on all."""
    if target is None:
        return
    profile = Topology.parse(target).accelerators[0].profile
    wanted, here = profile.capability, torch.cuda.get_device_capability()
    if wanted is not None and tuple(wanted) != here:
        raise DeviceMissing(
            f"{profile.name} has compute capability {wanted[0]}.{wanted[1]}, but the GPU of this "
            f"machine has {here[0]}.{here[1]}",
            command,
        )


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
