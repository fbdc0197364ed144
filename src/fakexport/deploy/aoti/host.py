"""Describe the machine that code is compiled for: its devices, instruction sets, and compiler."""

from __future__ import annotations

import shutil
import subprocess

import torch
from torch.export import ExportedProgram

from fakexport._torch.operators.inductor import compiler_command
from fakexport._version import __version__
from fakexport.emulation.devices import Topology, exists_here
from fakexport.exporting.program import devices_of_program, retarget

from ..artifact import DeployError


def _missing(reason: str, command: str | None) -> DeployError:
    """Return the error for a device that this machine lacks. `command` is what to run on a machine that has
    it.
    """
    what = f"run `{command}` there" if command else "compile it there"
    return DeployError(f"{reason}; copy the archive and the checkpoint to a machine that has it, and {what}")


def check_devices(program: ExportedProgram, target: str | None, *, command: str | None = None) -> None:
    """Raise if a device to compile for is not available here, or if there is more than one accelerator."""
    wanted = _accelerators(program, target)
    if len(wanted) > 1:
        raise DeployError(
            f"AOTInductor compiles for one accelerator, but the target has several: {', '.join(wanted)}"
        )
    for device in wanted:
        if not device.startswith("cuda"):
            raise DeployError(
                f"AOTInductor packages for {device} are not supported: compile for the CPU or CUDA"
            )
        if not exists_here(device):
            reason = f"AOTInductor queries the GPU that it compiles for, and {device} is not available"
            raise _missing(f"{reason} on this machine", command)
        _check_capability(target, command)


def on_target(program: ExportedProgram, target: str | None) -> ExportedProgram:
    """Move a program to the target's device, which must be available."""
    if target is None:
        return program
    wanted = Topology.parse(target).default_device
    present = [device for device in devices_of_program(program) if device != "meta"]
    if all(torch.device(device).type == torch.device(wanted).type for device in present):
        return program
    return retarget(program, dict.fromkeys(present, wanted))


def device_type(program: ExportedProgram) -> str:
    """Return `cuda` for a program that uses a GPU, otherwise `cpu`."""
    types = {torch.device(device).type for device in devices_of_program(program)}
    return "cuda" if "cuda" in types else "cpu"


def _accelerators(program: ExportedProgram, target: str | None) -> tuple[str, ...]:
    if target is not None:
        return tuple(device.name for device in Topology.parse(target).accelerators)
    return tuple(device for device in devices_of_program(program) if device not in ("cpu", "meta"))


def _check_capability(target: str | None, command: str | None) -> None:
    """Check that the GPU of this machine has the target's compute capability, which compiled code needs."""
    if target is None:
        return
    profile = Topology.parse(target).accelerators[0].profile
    wanted, here = profile.capability, torch.cuda.get_device_capability()
    if wanted is not None and tuple(wanted) != here:
        raise _missing(
            f"{profile.name} has compute capability {wanted[0]}.{wanted[1]}, but the GPU of this "
            f"machine has {here[0]}.{here[1]}",
            command,
        )


# Compilers use these extensions only if the source requests them by name. Inductor's code does not.
_NEVER_CHOSEN = frozenset({"aes", "clflush", "clflushopt", "clwb", "sha", "sse4a"})


def versions_here() -> dict[str, str]:
    """Return the versions of the packages that influence the generated code."""
    return {"fakexport": __version__, "torch": str(torch.__version__)}


def instructions_here(device: str) -> tuple[str, ...]:
    """Return the instruction sets that compiled code may use: CPU extensions, or the GPU's capability.

    Inductor compiles for the processor that it runs on (`-march=native`). On a processor without one of the
    extensions, an unknown instruction would kill the process.
    """
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return (f"sm_{major}{minor}",)
    found = torch.cpu.get_capabilities()
    return tuple(sorted(name for name, has in found.items() if has is True and name not in _NEVER_CHOSEN))


def compiler_version() -> str:
    """Return the C++ compiler's command and the first line of its version text, or raise a `DeployError`."""
    command = compiler_command()
    if command is None or shutil.which(command) is None:
        raise DeployError(
            "AOTInductor needs a C++ compiler, but none was found: run `apt install g++`, or set CXX"
        )
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeployError(
            f"the C++ compiler {command} does not run: {done.stderr.strip() or 'no error message'}"
        )
    return f"{command}: {(done.stdout.splitlines() or [''])[0]}"
