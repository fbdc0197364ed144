"""Compile a program to any deployment form."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, cast

from torch.export import ExportedProgram

from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.archive import Bundle, load, load_bundle, method_manifests
from fakexport.archive.weights import CheckpointSource
from fakexport.deploy import OPTIONS_OF, Form, check_form
from fakexport.error import InvalidValue
from fakexport.exporting.program import facts_of
from fakexport.files.documents import are_divided

from .artifact import CompiledFile, DeployError, Names, Report, WeightsPlace
from .opening import with_weights
from .plugin_runtime import compile_with_plugin


@one_at_a_time
def compile(
    program: ExportedProgram | Bundle | str | os.PathLike[str],
    path: str | os.PathLike[str],
    checkpoint: CheckpointSource | None = None,
    *,
    to: str = "aoti",
    devices: str | Mapping[str, str] | None = None,
    weights: WeightsPlace | None = None,
    names: Names | None = None,
    opset: int | None = None,
    backend: Literal["portable", "xnnpack"] | None = None,
    target: str | Sequence[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    tune: bool = False,
    command: str | None = None,
    on_progress: Report | None = None,
) -> CompiledFile:
    """Compile a program to native code, for edge runtimes, or to ONNX, like `fakexport compile`.

    Args:
        program: A program, or the path of an archive; for `cpp-project` and `onnx`, also a bundle; for
            `aoti`, also a bundle of programs that divide the sizes of a call among them. Not changed.
        path: The file to write, or the folder for `cpp-project` and for a bundle.
        checkpoint: The weights, as for `bind`. Default: the weights of the program.
        to: `aoti`: a .pt2 package of native code. `cpp-project`: such a package and a C++ program that runs
            it. `executorch`: a .pte file. `onnx`: an .onnx file, or a folder with one for each program of a
            bundle. Or the name of a runtime of an installed package.
        devices: Mapping of devices, as for `bind`.
        weights: For `aoti` and `onnx`: `inside` the file, or in a .safetensors file `beside` it (the
            default of `aoti` for GPUs).
        names: For `onnx`: `optimum` gives inputs, outputs and dynamic axes the names that files written by
            Optimum have. Default: the names in the program.
        opset: For `onnx`: version of the operators, at least 18. Default: the version that torch chooses.
        backend: For `executorch`. Default: `portable`.
        target: For `aoti` and `cpp-project`: the devices to compile for, as a topology. NVIDIA GPUs may be
            absent (extra `cuda`). Several GPUs share one package, which has code for each. Default: the
            program's devices.
        cache: For `aoti` and `cpp-project`: a folder that caches compiled packages.
        tune: For `aoti`: choose the configuration of each Triton kernel by timing it on this machine's NVIDIA
            GPU. The notes of the result name the kernels that this changed.
        command: If this machine lacks the devices, the error message suggests running this command on a
            machine that has them.
        on_progress: Called with a line of text at the start of each step.

    Returns:
        The written files, their size in bytes, and the compilation time in seconds.

    Raises:
        CompileFailure: The compiler does not support operators of the program. `diagnostics` has one entry
            per operator, with the user's line.
        DeployError: The devices are not available, or a package that the form needs reports an error.
        BindError, CheckpointError, ArchiveError: As for `bind`.
        ValueError: An option does not apply to the form, `devices` is given without a checkpoint, or the file
            name is invalid.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2).eval(), (torch.zeros(3, 4),))
        >>> weights = {"weight": torch.ones(2, 4), "bias": torch.zeros(2)}
        >>> compile(program, "linear.onnx", weights, to="onnx").path.name
        'linear.onnx'
    """
    check_form(to)
    given: dict[str, object] = {
        "weights": weights,
        "names": names,
        "opset": opset,
        "backend": backend,
        "target": target,
        "cache": cache,
        "tune": tune or None,
    }
    for option, value in given.items():
        if value is not None and option not in OPTIONS_OF.get(to, ()):
            raise InvalidValue(f"{to} has no option {option}")
    opened = program if isinstance(program, ExportedProgram | Bundle) else program_to_compile(program, to)
    if isinstance(opened, Bundle):
        if to == "aoti" and are_divided(facts_of(each).sizes for each in opened.values()):
            from .aoti import compile_ranges

            bundle = with_weights(opened, checkpoint, devices)
            return compile_ranges(
                bundle, path, weights=weights, target=target, cache=cache, tune=tune, report=on_progress
            )
        if to == "onnx":
            from .onnx import compile_onnx_folder

            bundle = with_weights(opened, checkpoint, devices)
            return compile_onnx_folder(
                bundle, path, weights=weights or "inside", names=names, opset=opset, report=on_progress
            )
        if to != "cpp-project":
            raise InvalidValue(
                "a bundle can only be compiled to cpp-project and onnx: pass one of its programs to compile "
                f"it to {to}"
            )
        from .cpp_project import write_cpp_project

        bundle = with_weights(opened, checkpoint, devices)
        return write_cpp_project(bundle, path, target=target, cache=cache, report=on_progress)
    if to in ("aoti", "cpp-project") and devices is None:
        from .aoti import absent_gpu, device_type, each_target, on_target

        targets = each_target(target)
        gpu = next(filter(None, [absent_gpu(opened, each, command=command) for each in targets]), None)
        if gpu is None and len(targets) == 1:
            opened = on_target(opened, targets[0])
        if gpu is not None and checkpoint is not None and device_type(opened) != "cpu":
            raise DeployError(
                f"{gpu} is not available on this machine: compile without the checkpoint, and pass it to "
                "`fakexport run` on the machine that runs the package"
            )
    opened = with_weights(opened, checkpoint, devices)
    if to not in OPTIONS_OF:
        return compile_with_plugin(opened, path, to)
    # Imported here, because each form needs a different optional package.
    match cast("Form", to):
        case "aoti":
            from .aoti import compile_aoti

            return compile_aoti(
                opened, path, weights=weights, target=target, cache=cache, tune=tune, report=on_progress
            )
        case "cpp-project":
            from .cpp_project import write_cpp_project

            return write_cpp_project(opened, path, target=target, cache=cache, report=on_progress)
        case "executorch":
            from .executorch import compile_executorch

            return compile_executorch(opened, path, backend=backend or "portable", report=on_progress)
        case "onnx":
            from .onnx import compile_onnx

            return compile_onnx(
                opened, path, weights=weights or "inside", names=names, opset=opset, report=on_progress
            )


def program_to_compile(
    path: str | os.PathLike[str], to: str, *, method: str | None = None, trust: bool = False
) -> ExportedProgram | Bundle:
    """Load an archive. Without a method, `cpp-project` and `onnx` get all programs, such as prefill and
    decode, and `aoti` gets all programs that divide the sizes of a call among them.

    Args:
        method, trust: As for `load`.
    """
    if to in ("aoti", "cpp-project", "onnx") and method is None:
        manifests = method_manifests(path, trust=trust)
        if are_divided(about.sizes for about in manifests.values()) or (to != "aoti" and len(manifests) > 1):
            return load_bundle(path, trust=trust)
    return load(path, method=method, trust=trust)
