"""Compile for a GPU, which this machine may lack, in a separate process that patches torch and Triton."""

from __future__ import annotations

import math
import os
import pickle
from dataclasses import dataclass
from pathlib import Path

from fakexport._torch.operators.absent_gpu import ENVIRONMENT, CompiledKernel
from fakexport.emulation.devices import profile_named
from fakexport.files.processes import Limits, run_limited
from fakexport.rules.diagnostics import Diagnostic

from ..artifact import CompileFailure, DeployError

PROGRAM, GPU, ANSWER, _LOG = "program.pt2", "gpu.pickle", "answer.pickle", "worker.log"
_MODULE = "fakexport.deploy.aoti.gpu_worker"


@dataclass(frozen=True)
class Compiled:
    """The package's files, names to bind and Triton kernels; or the called operators of generated code."""

    files: tuple[Path, ...]
    constants: tuple[str, ...]
    kernels: tuple[CompiledKernel, ...]
    called: tuple[str, ...] = ()


Answer = Compiled | str | tuple[Diagnostic, ...]
"""Output of the process: a result, the message of a `DeployError`, or the findings of a `CompileFailure`."""


def compiled_for(
    gpu: str, archive: bytes, folder: Path, *, is_timed: bool = False, is_asked: bool = False
) -> Compiled:
    """Compile a weight-less program in a new process.

    Args:
        gpu: Name of a device profile with a compute capability.
        archive: The program as a weight-less `.pt2` file, with all tensors on `cuda:0` or the CPU.
        folder: A new folder for all files, including the caches of Inductor and Triton.
        is_timed: Whether to choose the configurations of kernels by timing them on this machine's GPU.
        is_asked: Whether to generate the code without compiling it.

    Raises:
        CompileFailure: Inductor cannot compile the program (FE803).
        DeployError: A signal ended the process, or this machine lacks something that the compilation needs.
    """
    folder.mkdir(parents=True)
    (folder / PROGRAM).write_bytes(archive)
    (folder / GPU).write_bytes(pickle.dumps(profile_named(gpu)))
    # A GPU that is here could change what Inductor generates. Without it, equal programs get equal packages.
    hidden = {} if is_timed else {"CUDA_VISIBLE_DEVICES": ""}
    caches = {f"{name}_CACHE_DIR": str(folder / name.lower()) for name in ("TORCHINDUCTOR", "TRITON")}
    with (folder / _LOG).open("wb") as log:
        ended = run_limited(
            _MODULE,
            [str(folder), *(["asked"] if is_asked else ["timed"] if is_timed else [])],
            Limits(seconds=math.inf),
            stdout=log,
            stderr=log,
            environment={**os.environ, **ENVIRONMENT, **caches, **hidden},
        )
    answer = folder / ANSWER
    if not answer.exists():
        lines = (folder / _LOG).read_text(errors="replace").strip().splitlines() or ["no output"]
        message = f"the compilation for {gpu} ended with exit code {ended.code}: {lines[-1]}"
        raise DeployError(message) if (ended.code or 0) < 0 else RuntimeError(message)
    found: Answer = pickle.loads(answer.read_bytes())
    if isinstance(found, Compiled):
        return found
    raise DeployError(found) if isinstance(found, str) else CompileFailure(found)
