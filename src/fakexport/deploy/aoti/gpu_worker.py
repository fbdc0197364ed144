"""The process that compiles for a GPU.

It is started as `python -m fakexport.deploy.aoti.gpu_worker ALIVE FOLDER [timed|asked]`.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.export import ExportedProgram

from fakexport._torch.operators import absent_gpu
from fakexport._torch.operators.absent_gpu import AbsentGpu
from fakexport.archive import load
from fakexport.emulation.devices import DeviceProfile, emulate, known_profiles
from fakexport.error import FakexportError, missing_in_torch
from fakexport.exporting.program import fake_mode_of
from fakexport.files.processes import end_with_parent

from ..artifact import CompileFailure, DeployError
from .gpu_compilation import ANSWER, GPU, PROGRAM, Answer, Compiled
from .graph import called_operators, compiled_files
from .stand_ins import with_tensors


def main(arguments: Sequence[str]) -> None:
    """Compile the program in the folder, and write an `Answer`."""
    alive, place, *how = arguments
    end_with_parent(int(alive))
    folder = Path(place)
    found: Answer
    gpu: DeviceProfile = pickle.loads((folder / GPU).read_bytes())
    known_profiles.set({gpu.name: gpu})  # It may be a user's own.
    try:
        found = _compiled(load(folder / PROGRAM, trust=True), gpu, folder, how=how[0] if how else "")
    except CompileFailure as failure:
        found = failure.diagnostics
    except (FakexportError, OSError) as error:
        found = str(error)
    except Exception as error:
        if (missing := missing_in_torch(error)) is None:
            raise
        found = str(missing)
    new = folder / f"{ANSWER}.new"
    new.write_bytes(pickle.dumps(found))
    new.rename(folder / ANSWER)
    os._exit(0)  # Skip exit handlers of Inductor's caches.


def _compiled(program: ExportedProgram, profile: DeviceProfile, folder: Path, *, how: str) -> Compiled:
    is_timed = how == "timed"
    mode, gpu = fake_mode_of(program), _gpu(profile)
    with nullcontext() if is_timed else emulate(profile.name):
        kernels = absent_gpu.prepare(gpu, folder, is_timed=is_timed)
        with mode:
            prepared = with_tensors(
                program, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            )
            if how == "asked":
                return Compiled((), (), (), called_operators(prepared, folder, options=absent_gpu.OPTIONS))
            files = compiled_files(prepared, folder / "code", has_weights=False, options=absent_gpu.OPTIONS)
    absent_gpu.remove_commands(files)
    return Compiled(files, _constant_names(files), tuple(kernels))


_NEEDED = (
    "capability",
    "multiprocessor_count",
    "shared_memory_per_block_optin_bytes",
    "registers_per_multiprocessor",
    "warp_size",
)


def _gpu(profile: DeviceProfile) -> AbsentGpu:
    values = [getattr(profile, name) for name in _NEEDED]
    missing = [name for name, value in zip(_NEEDED, values, strict=True) if value is None]
    if missing:
        raise DeployError(f"the profile {profile.name} has no {missing[0]}, which Triton needs")
    return AbsentGpu(*values)


_CONSTANT = re.compile(r'constants_info_\[\d+\]\.original_fqn = "(.*)";')


def _constant_names(files: Sequence[Path]) -> tuple[str, ...]:
    """Read the constants' names from the source: the compiled code cannot be loaded without the GPU."""
    sources = [file.read_text() for file in files if file.name.endswith(".wrapper.cpp")]
    return tuple(dict.fromkeys(name for source in sources for name in _CONSTANT.findall(source)))


if __name__ == "__main__":
    main(sys.argv[1:])
