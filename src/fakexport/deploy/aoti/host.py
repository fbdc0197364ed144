"""Describe the machine that code is compiled for: its devices, instruction sets, and compiler."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from fakexport._torch.operators.inductor import compiler_command
from fakexport._version import __version__
from fakexport.emulation.devices import DeviceProfile, Topology, exists_here, load_profiles, profile_named
from fakexport.exporting.program import devices_of_program, facts_of, retarget
from fakexport.models import packages_of

from ..artifact import DeployError


def missing_device(reason: str, command: str | None) -> DeployError:
    """Return the error for a missing device. `command` is what to run on a machine that has it."""
    what = f"run `{command}` there" if command else "compile it there"
    return DeployError(f"{reason}; copy the archive and the checkpoint to a machine that has it, and {what}")


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU to compile for in a separate process: the name of its profile, and whether it is here."""

    profile: str
    is_here: bool

    def refusal(self, operator: str) -> str:
        """Return why a program with an operator or a class of a library needs the GPU itself."""
        return (
            f"the program uses {operator}, which a library defines, so it can only be compiled on a machine "
            f"that has the GPU, {self.profile}"
        )


def nvidia_gpu(program: ExportedProgram, target: str | None, *, command: str | None = None) -> Gpu | None:
    """Return the NVIDIA GPU to compile for, whether it is here or not: the package is the same.

    Args:
        target: The devices to compile for. Default: the program's devices.
        command: What to run on a machine that has the device, for the error message.

    Returns:
        The GPU, or None if the program is for the CPU, or for a GPU that is here and that a separate process
        cannot compile for, because it has no profile, is not from NVIDIA, or Triton or x86-64 is missing.

    Raises:
        DeployError: The target or the program has several accelerators, the device is not supported, it is
            absent and its model is unknown, or this machine cannot compile for it.
    """
    wanted = _accelerators(program, target)
    for owner, devices in (("target", wanted), ("program", _accelerators(program, None))):
        if wanted and len(devices) > 1:
            raise DeployError(
                f"AOTInductor compiles for one accelerator, but the {owner} has several: {', '.join(devices)}"
            )
    if not wanted:
        return None
    (device,) = wanted
    if not device.startswith("cuda"):
        raise DeployError(f"AOTInductor packages for {device} are not supported: compile for the CPU or CUDA")
    is_here = exists_here(device)
    topology = target if is_here else target or facts_of(program).topology
    known = None if topology is None else Topology.parse(topology)
    named = None
    if known is not None and not known.assumptions:  # `cuda` names no model.
        named = next((each.profile for each in known.accelerators if each.name == device), None)
    if is_here and (named is None or named.capability == torch.cuda.get_device_capability()):
        here = named or _profile_here()
        can_compile = here is not None and here.gcn_arch_name is None and _is_x86_linux() and _has_triton()
        return Gpu(here.name, is_here=True) if here is not None and can_compile else None
    if named is None:
        raise DeployError(
            f"{device} is not available on this machine: name the GPU with --target, such as H100"
        )
    _check_can_compile(named, command)
    return Gpu(named.name, is_here=False)


def absent_gpu(program: ExportedProgram, target: str | None, *, command: str | None = None) -> str | None:
    """Return the profile's name of the GPU to compile for, if this machine lacks it, like `nvidia_gpu`."""
    gpu = nvidia_gpu(program, target, command=command)
    return None if gpu is None or gpu.is_here else gpu.profile


def _profile_here() -> DeviceProfile | None:
    name = torch.cuda.get_device_name()
    return next((each for each in load_profiles().values() if each.vendor_name == name), None)


def _is_x86_linux() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def each_target(target: str | Sequence[str] | None) -> tuple[str | None, ...]:
    """Return the targets of a compilation without duplicates. None means the program's devices."""
    if target is None or isinstance(target, str):
        return (target,)
    return tuple(dict.fromkeys(target)) or (None,)


def _check_can_compile(profile: DeviceProfile, command: str | None) -> None:
    """Raise if this machine, which lacks the GPU of the profile, cannot compile for it."""
    if profile.gcn_arch_name is not None:
        raise missing_device(
            f"packages for {profile.name} can only be compiled on a machine with this GPU", command
        )
    if not _is_x86_linux():
        raise missing_device(
            f"{profile.name} is not available on this machine, and compiling for it needs Linux on x86-64",
            command,
        )
    if not _has_triton():
        raise DeployError(
            f"{profile.name} is not available on this machine, and compiling for it needs Triton: "
            f"pip install {packages_of('cuda')}"
        )


def on_target(program: ExportedProgram, target: str | None) -> ExportedProgram:
    """Move a program to the target's device. If the device is absent, the moved weights are fake."""
    if target is None:
        return program
    wanted = Topology.parse(target).default_device
    present = [device for device in devices_of_program(program) if device != "meta"]
    if all(torch.device(device).type == torch.device(wanted).type for device in present):
        return program
    return retarget(program, dict.fromkeys(present, wanted), target=target)


def device_type(program: ExportedProgram) -> str:
    """Return `cuda` for a program that uses a GPU, otherwise `cpu`."""
    types = {torch.device(device).type for device in devices_of_program(program)}
    return "cuda" if "cuda" in types else "cpu"


def _accelerators(program: ExportedProgram, target: str | None) -> tuple[str, ...]:
    if target is not None:
        return tuple(device.name for device in Topology.parse(target).accelerators)
    return tuple(device for device in devices_of_program(program) if device not in ("cpu", "meta"))


# Compilers use these extensions only if the source requests them by name. Inductor's code does not.
_NEVER_CHOSEN = frozenset({"aes", "clflush", "clflushopt", "clwb", "sha", "sse4a"})


def versions_here() -> dict[str, str]:
    """Return the versions of the packages that influence the generated code."""
    return {"fakexport": __version__, "torch": str(torch.__version__)}


def instructions_for(gpu: str) -> tuple[str, ...]:
    """Return what `instructions_here` returns on a machine with this GPU."""
    capability = profile_named(gpu).capability
    assert capability is not None  # Each CUDA profile has one.
    return (f"sm_{capability[0]}{capability[1]}",)


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
