"""Step, in parallel with `fidelity`: compile native code for the GPU on the machine that has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.gpu_proof import packages, small_packages
from benchmarks.gpu_proof.parts import Part, run_parts
from benchmarks.gpu_proof.programs import model_on
from benchmarks.gpu_proof.run import ROOT, Run
from benchmarks.gpu_proof.values import distance, random_like

_AT_A_TIME = 6
_LIMIT_S = 180
_LLAMA = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip
_PACKAGES = ("gpu-inside", "gpu-beside", "cpu-inside", "cpu-beside")
"""Device that the program was captured for, and where the weights are stored."""

CASES = (*_PACKAGES, "cpp", "tests")
_IN_CPP = ("perceptron dynamic", "attention bfloat16", "masked attention bfloat16", "cache", "llama", "vit")
"""Packages of the step `small_packages` that C++ runs too."""

_TOOLKIT_HEADER = "usr/local/cuda*/include/cuda_runtime.h"
_DRIVERS = ("usr/local/nvidia/lib*/libcuda.so.1", "usr/lib/*/libcuda.so.1", "usr/lib64/libcuda.so.1")


def step(run: Run) -> None:
    """Compile packages and the C++ project, and run the tests that need a GPU."""
    _let_compilers_find_cuda(run)
    parts = [Part("native", "cpp", limit_s=_LIMIT_S, threads=4)]
    parts += [Part("native", "aoti", name, limit_s=_LIMIT_S, threads=4) for name in _PACKAGES]
    if not run.is_pretend:  # Without a GPU, the step `prepare` builds packages.
        built = ("build_here", "build_stock", "build_tuned")
        parts += [Part("packages", how, name, limit_s=_LIMIT_S) for name in packages.CASES for how in built]
    parts += [Part("native", "tests", limit_s=_LIMIT_S)]
    chosen = [part for part in parts if not run.only or (part.case or part.name) in run.only]
    run_parts(run, chosen, jobs=min(run.jobs, _AT_A_TIME))


def _let_compilers_find_cuda(run: Run) -> None:
    """Set environment variables, if compilers cannot find the CUDA toolkit or the driver.

    `nvcc` may be a script outside of the toolkit. A container may have `libcuda.so.1` but no `libcuda.so`.
    """
    if toolkit := next((path.parents[1] for path in Path("/").glob(_TOOLKIT_HEADER)), None):
        os.environ.setdefault("CUDA_HOME", str(toolkit))
    driver = next((path for pattern in _DRIVERS for path in Path("/").glob(pattern)), None)
    if driver is None or driver.with_name("libcuda.so").exists():
        return
    link = run.work / "driver" / "libcuda.so"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(driver)
    os.environ["LIBRARY_PATH"] = f"{link.parent}{os.pathsep}{os.environ.get('LIBRARY_PATH', '')}"


def aoti(run: Run, name: str) -> dict[str, Any]:
    """Compile a small Llama that was captured for the GPU or the CPU, and compare it with eager mode."""
    import fakexport as fe
    from fakexport.deploy.aoti import open_aoti
    from fakexport.models.sources import resolve

    captured_for, weights = name.split("-")
    folder = run.work / "native" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_LLAMA))
    source = resolve(f"hf:{folder / 'config.json'}")
    module, _, kwargs = model_on(source, run.device, None)
    inputs = {key: random_like(value) for key, value in kwargs.items() if isinstance(value, torch.Tensor)}
    with torch.no_grad():
        wanted = module.eval()(**inputs).logits
    target = "cpu" if run.is_pretend or captured_for == "cpu" else run.profile
    program = fe.export(source, target=target)
    where = "cpu" if target == "cpu" else run.device
    checkpoint = {key: value.to(where) for key, value in module.state_dict().items()}
    bound = fe.bind(program, checkpoint, check_finite=False)
    begun = time.perf_counter()
    made = fe.compile(
        bound,
        folder / "model.pt2",
        to="aoti",
        weights=weights,
        target=None if run.is_pretend else run.profile,
    )
    seconds = time.perf_counter() - begun
    got = next(iter(open_aoti(made.path)(inputs).values()))
    return {**distance([wanted], [got]), "device": str(got.device), "compile_seconds": round(seconds, 1)}


def cpp(run: Run, _: str) -> dict[str, Any]:
    """Build the C++ project of a program that was retargeted to the GPU, and run it."""
    from safetensors.torch import load_file, save_file

    import fakexport as fe

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).eval()
    x, folder = torch.randn(3, 16), run.work / "native" / "cpp"
    shutil.rmtree(folder, ignore_errors=True)  # Of an earlier run: a project needs a new folder.
    folder.mkdir(parents=True)
    program = fe.export(lambda: module, (torch.zeros(3, 16),))
    if not run.is_pretend:
        program = fe.retarget(program, {"cpu": "cuda:0"})
    weights = {name: value.to(run.device) for name, value in module.state_dict().items()}
    bound = fe.bind(program, weights)
    project, built = folder / "project", folder / "build"
    fe.compile(bound, project, to="cpp-project")
    options = [f"-DPython3_EXECUTABLE={sys.executable}"]
    if "CUDA_HOME" in os.environ:
        options.append(f"-DCUDA_TOOLKIT_ROOT_DIR={os.environ['CUDA_HOME']}")
    _call(["cmake", "-S", project, "-B", built, *options])
    _call(["cmake", "--build", built, "-j", str(os.cpu_count() or 1), "--target", "run"])
    (name,) = bound.graph_signature.user_inputs
    save_file({str(name): x}, folder / "in.safetensors")
    package, out = project / "model.aoti.pt2", folder / "out.safetensors"
    _call([built / "run", "--package", package, "--inputs", folder / "in.safetensors", "--output", out])
    (got,) = load_file(out).values()
    for package in () if run.is_pretend else _IN_CPP:
        _run_in_cpp(run, built / "run", package)
    return distance([module(x).detach()], [got])


def _run_in_cpp(run: Run, program: Path, name: str) -> None:
    """Run a package that was built without a GPU in C++, and compare its first call with eager mode."""
    from safetensors.torch import load_file, save_file

    from fakexport.deploy.aoti.package import read_metadata
    from fakexport.files.container import read_container

    package = small_packages.path_of(run, name)
    if not package.exists():
        run.record("native", name, part="cpp", error="not built: run the step `prepare` before")
        return
    with read_container(package, trust=True) as opened:
        signature = read_metadata(opened).signature
    weights = package.with_name("weights.safetensors")
    given, wanted = (load_file(package.with_name(f"{kind}-0.safetensors")) for kind in ("inputs", "outputs"))
    inputs, out = (run.work / "native" / "cpp" / f"{kind}.safetensors" for kind in ("inputs", "outputs"))
    names = [tensor.name for tensor in signature.inputs]
    save_file(dict(zip(names, (given[at] for at in sorted(given)), strict=True)), inputs)
    command = [program, "--package", package, "--weights", weights, "--inputs", inputs, "--output", out]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        run.record("native", name, part="cpp", error=done.stderr[-600:])
        return
    found = load_file(out)
    got = [found[output.name] for output in signature.outputs if output.is_tensor]
    run.record("native", name, part="cpp", **distance([wanted[at] for at in sorted(wanted)], got))


def tests(run: Run, _: str) -> dict[str, Any]:
    """Run the tests that need a GPU, except the test of programs, which `fidelity` compares."""
    tested = "tests/gpu/test_compile_aoti.py"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-o", "minversion=8.0", tested]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return {"ok": done.returncode == 0, "exit_code": done.returncode, "output": done.stdout[-6000:]}


def _call(command: list[Path | str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(
            f"{command[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"
        )


PARTS = {"aoti": aoti, "cpp": cpp, "tests": tests}
