"""Compile a program with AOTInductor."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch.export import ExportedProgram

from fakexport._torch.operators.absent_gpu import TESTED, CompiledKernel, untested_release
from fakexport.archive.weights import Weight
from fakexport.error import InvalidValue
from fakexport.exporting.program import (
    WeightsNotBoundError,
    library_classes,
    library_operators,
    unbound_names,
)
from fakexport.files import new_file
from fakexport.files.container import MIB, read_container

from ..artifact import CompiledFile, DeployError, Report, WeightsPlace, silent
from ..composed_program import IN_PYTHON, composed
from ..signature import Signature
from ..size_ranges import written_by_any
from ..weights_file import FileLayout, file_beside
from .faults import refuse_sparse
from .graph import input_orders
from .host import (
    absent_gpu,
    compiler_version,
    device_type,
    each_target,
    instructions_for,
    instructions_here,
    nvidia_gpu,
    on_target,
)
from .job import Job
from .package import KERNELS, PackageCache, code_names, read_constants, read_metadata, write_joined
from .stand_ins import held_tensors, without_values


def compile_aoti(
    program: ExportedProgram,
    path: str | os.PathLike[str],
    *,
    weights: WeightsPlace | None = None,
    target: str | Sequence[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    tune: bool = False,
    report: Report | None = None,
) -> CompiledFile:
    """Compile a program to native code for the CPU, or for an NVIDIA GPU, which may be absent here.

    For a GPU, Triton compiles the kernels for the GPU's compute capability, in a new process that does not
    use the GPU. Unless `tune` is true, kernels are not timed: each gets the first of Inductor's
    configurations that does not spill registers. Matrix products, convolutions and attention call torch's
    libraries. The host code needs x86-64 with AVX2, and a CUDA build of the same torch release; this torch
    may be the CPU build. If the GPU is here but has no device profile, if the weights are inside the package,
    or if a library defines an operator, Inductor compiles in this process, and times the kernels.

    With several targets, the package contains code for each of these GPUs, stored under the GPU's compute
    capability, such as `sm_90`. `open_aoti` loads the code for the GPU of its machine. There is one weights
    file for all GPUs.

    The result is a torch package, which `open_aoti`, `torch._inductor.aoti_load_package` and C++ can open. If
    the weights are bound later, the code does not depend on their values, so it works with any matching
    checkpoint.

    Args:
        program, path, weights, target: As for `compile`. For a weight-less program, `weights` is `beside`,
            and no weights file is written. For a GPU, the default is `beside`, and `inside` is an error if
            the GPU is absent. Constants with known values are always in the package.
        cache: A folder that caches packages, keyed by everything that the code depends on. Cached code is
            executed, so a folder that other users own or can write to is rejected. A missing folder is
            created with access for this user only.
        tune: As for `compile`.
        report: Called with each line of progress.

    Raises:
        CompileFailure: Inductor cannot compile the program (FE803).
        DeployError: Other users can write to the cache; a C++ compiler, device or folder is missing; the disk
            is full; an input's memory layout is unsupported; or the path of the weights is an unrelated
            safetensors file.
        WeightsNotBoundError: `weights` is `inside`, but the program is weight-less.
        FileWriteError: A file cannot be written; an existing file is kept.
        ValueError: The path does not end in `.pt2`, an input of the program is not a tensor, or the archive
            format cannot express the program.
    """
    begun, out = time.monotonic(), Path(path)
    if out.suffix != ".pt2":
        raise InvalidValue(f"{out}: the name of a package must end in .pt2, otherwise torch cannot open it")
    if not out.absolute().parent.is_dir():
        raise DeployError(f"{out.parent}: no such folder")
    first, *others = each_target(target)
    if others:
        targets = tuple(filter(None, (first, *others)))
        return _compiled_for_each(program, out, targets, weights, cache, tune, report)
    unbound = unbound_names(program)
    gpu = nvidia_gpu(program, first)
    if tune and (gpu is None or not gpu.is_here):
        raise DeployError(
            f"{gpu.profile} is not available on this machine, so its kernels cannot be timed"
            if gpu
            else "only the kernels of NVIDIA GPUs can be timed: name a GPU that has a device profile"
        )
    place: WeightsPlace = weights or ("beside" if unbound or gpu else "inside")
    if unbound and place == "inside":
        raise WeightsNotBoundError(unbound)
    if gpu is not None and place == "inside":
        if not gpu.is_here or tune:
            reason = "kernels are timed" if tune else f"{gpu.profile} is not available on this machine"
            raise DeployError(f"{reason}, so the weights cannot be inside the package: pass --weights beside")
        gpu = None  # The other process has no weights.
    compiler = compiler_version()
    source = program  # Moving it to an absent GPU makes its weights fake.
    # Native code cannot call transformers' operators, whose kernels are in Python.
    program = composed(on_target(program, first), IN_PYTHON)
    if gpu is not None and (foreign := (*library_operators(program), *library_classes(program))):
        if not gpu.is_here or tune:
            raise DeployError(gpu.refusal(foreign[0]) + (", without --tune" if tune else ""))
        gpu = None  # The other process does not import the library.
    refuse_sparse(program)
    # Building the signature raises for unsupported programs before the compilation starts.
    signature, orders = Signature.of(program), input_orders(program)
    profile = None if gpu is None else gpu.profile
    job = Job(program, signature, orders, place, compiler, profile, tune, report or silent)
    notes = []
    # After an interruption, compilers may still be writing.
    with tempfile.TemporaryDirectory(prefix="fakexport-aoti-", ignore_cleanup_errors=True) as folder:
        kept = None if cache is None else PackageCache(Path(cache), job.key)
        package = None if kept is None else kept.taken(Path(folder))
        is_cached = package is not None
        if package is None:
            package = job.compiled(Path(folder))
            if kept is not None and (fault := kept.keep(package)):
                notes.append(fault)
        job.report("writing")
        files = _written(package, out, [source], is_beside=place == "beside")
    if tune:
        notes += _timed_kernels(out)
    elif gpu is not None:
        hint = ": pass --tune to time them" if gpu.is_here else ""
        notes.append(
            f"kernel configurations for {gpu.profile} were chosen by fixed rules, not by timing them on the "
            f"GPU{hint}"
        )
        if release := untested_release():
            notes.append(
                f"compiling for an absent GPU was not tested with torch {release}, only with torch "
                f"{', '.join(TESTED)}"
            )
    if unbound:
        notes.append(_without_weights(out))
    return CompiledFile.of(out, files, begun, notes=notes, is_cached=is_cached)


def _compiled_for_each(
    program: ExportedProgram,
    out: Path,
    targets: Sequence[str],
    weights: WeightsPlace | None,
    cache: str | os.PathLike[str] | None,
    tune: bool,
    report: Report | None,
) -> CompiledFile:
    if weights == "inside":
        raise InvalidValue("a package for several GPUs cannot contain its weights: pass --weights beside")
    weightless = without_values(program)
    parts = {code: (weightless, target) for code, target in _codes(weightless, targets).items()}
    return _compiled_together(parts, [program], out, cache, tune, report)


def compile_ranges(
    programs: Mapping[str, ExportedProgram],
    path: str | os.PathLike[str],
    *,
    weights: WeightsPlace | None = None,
    target: str | Sequence[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    tune: bool = False,
    report: Report | None = None,
) -> CompiledFile:
    """Compile programs that divide the sizes of a call among them to one package.

    The package contains code for each program, under its method. Each weight is stored once, in the file next
    to the package. Arguments and errors are those of `compile_aoti`.

    Args:
        programs: The programs by method, from one bundle.
    """
    targets = each_target(target)
    if len(targets) > 1:
        raise InvalidValue("a package for several ranges of sizes can be compiled for one target only")
    if weights == "inside":
        raise InvalidValue(
            "a package for several ranges of sizes cannot contain its weights: pass --weights beside"
        )
    written_by_any(programs)  # Raises if they cannot share what they write.
    parts = {method: (without_values(program), targets[0]) for method, program in programs.items()}
    return _compiled_together(parts, list(programs.values()), Path(path), cache, tune, report)


def _compiled_together(
    parts: Mapping[str, tuple[ExportedProgram, str | None]],
    programs: Sequence[ExportedProgram],
    out: Path,
    cache: str | os.PathLike[str] | None,
    tune: bool,
    report: Report | None,
) -> CompiledFile:
    """Compile weight-less programs, each for its target, to one package, with the weights of `programs`."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fakexport-aoti-") as folder:
        made = [
            compile_aoti(
                program,
                Path(folder, f"{code}.pt2"),
                weights="beside",
                target=target,
                cache=cache,
                tune=tune,
                report=report,
            )
            for code, (program, target) in parts.items()
        ]
        write_joined(joined := Path(folder, "joined.pt2"), {one.path.stem: one.path for one in made})
        files = _written(joined, out, programs, is_beside=True)
    notes = dict.fromkeys(note for one in made for note in one.notes if note != _without_weights(one.path))
    more = [_without_weights(out)] if any(map(unbound_names, programs)) else []
    return CompiledFile.of(
        out, files, begun, notes=[*notes, *more], is_cached=all(one.is_cached for one in made)
    )


def _codes(program: ExportedProgram, targets: Sequence[str]) -> dict[str, str]:
    """Return a dict from compute capability, such as `sm_90`, to the target with that GPU."""
    found: dict[str, str] = {}
    for target in targets:
        gpu = absent_gpu(program, target)
        if gpu is None and device_type(on_target(program, target)) != "cuda":
            raise InvalidValue(f"{target}: only NVIDIA GPUs can share a package")
        (code,) = instructions_here("cuda") if gpu is None else instructions_for(gpu)
        if code in found:
            raise InvalidValue(
                f"{target} and {found[code]} have the same compute capability, {code}, so they run the same "
                "code: pass only one of them"
            )
        found[code] = target
    return found


def _without_weights(out: Path) -> str:
    return f"{out.name} has no weights: `fakexport run {out.name} CHECKPOINT` binds them"


def _timed_kernels(package: Path) -> list[str]:
    """Return a sentence about the kernels of a package, and one about each that timing changed."""
    with read_container(package, trust=True) as opened:
        kernels = [CompiledKernel(**kernel) for kernel in json.loads(opened.record(KERNELS))]
    changed = [kernel for kernel in kernels if kernel.untimed]
    notes = [f"timing changed the configuration of {len(changed)} of {len(kernels)} kernels"]
    return notes + [
        f"{kernel.name}: {kernel.configuration} takes {kernel.microseconds:.1f} µs, {kernel.untimed} takes "
        f"{kernel.untimed_microseconds:.1f} µs"
        for kernel in changed
    ]


def _written(
    package: Path, out: Path, programs: Sequence[ExportedProgram], *, is_beside: bool
) -> tuple[Path, ...]:
    """Copy the package to its destination, and write its programs' weights next to it if they belong there.

    First the package is completely written to disk. Then the weights file is renamed to its final name. The
    package is renamed last, so there is never a new package next to old weights, even if the process dies.
    """
    with new_file(out) as target:
        with package.open("rb") as source:
            shutil.copyfileobj(source, target, MIB)
        if not is_beside or any(map(unbound_names, programs)):
            return (out,)
        target.flush()
        held: dict[str, torch.Tensor] = {}
        for program in reversed(programs):
            held |= held_tensors(program)
        beside = file_beside(out)
        with read_container(package, trust=True) as opened:
            # The file also gets the package's constants, because torch's own loader only reads the file.
            metadata, names = read_metadata(opened), set()
            for code in code_names(opened):
                names |= {tensor.name for tensor in read_metadata(opened, code).tensors}
                names |= read_constants(opened, code).keys()
        weights = {name: Weight(tuple(held[name].shape), held[name].dtype) for name in names}
        layout = FileLayout.of(weights, metadata.program_id)
        layout.write_beside(beside, {name: held[name] for name in names})
    return out, beside
