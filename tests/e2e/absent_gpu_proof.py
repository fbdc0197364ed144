"""Compile a program for a GPU that this machine lacks, check the package, and run it as `simulated_gpu` does.

`python -m tests.e2e.absent_gpu_proof [--quick] [PROGRAM...]` prints a table. It forks for each program, to
import once. `--quick` compiles the host code without optimization. `-` reads lines of a program and a folder.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import fakexport as fe
from fakexport._torch.operators import absent_gpu
from fakexport.deploy.aoti import gpu_compilation, job
from fakexport.deploy.aoti.metadata import PackageMetadata
from fakexport.deploy.aoti.package import CONSTANTS, KERNELS, read_metadata, verify_package
from fakexport.deploy.signature import Signature
from fakexport.emulation.devices import profile_named
from fakexport.files.container import read_container
from tests.e2e.absent_gpu_programs import PROGRAMS, Case

_ROOT = Path(__file__).parents[2]
_WHEEL = _ROOT / "tests/torch_facts/cuda_wheel_symbols.txt"
_SIZES = {"CUdeviceptr": 8, "int64_t": 8, "double": 8, "float": 4, "int": 4, "int32_t": 4, "int8_t": 1}


@dataclass(frozen=True)
class Row:
    """What a proof measured. `error` is the greatest difference to eager, `scale` eager's greatest value."""

    name: str
    build_s: float
    size_bytes: int
    kernels: int
    spilling: int
    calls: int
    error: float
    scale: float


def proof(name: str, folder: Path, simulate: Callable[[Path], None]) -> Row:
    """Build, check and simulate the package of a program. Raise an AssertionError if something is wrong.

    Args:
        name: A key of `PROGRAMS`.
        folder: An empty folder.
        simulate: Runs the calls in a folder; `simulated` is one.
    """
    (folder / "case").mkdir()
    case = PROGRAMS[name](folder / "case")
    package, begun = folder / "package.pt2", time.monotonic()
    with noting(folder / "kernels.json"):
        fe.compile(case.program, package, to="aoti")
    seconds = time.monotonic() - begun
    kernels = check_package(package, "H100")
    with read_container(package, trust=True) as opened:
        assert read_metadata(opened).signature == Signature.of(case.program)
    _write_calls(case, folder, records(package).get(CONSTANTS))
    simulate(folder)
    error, scale = _compared(case, folder)
    spilling = sum(kernel["local_bytes"] > 0 for kernel in kernels)
    size = package.stat().st_size
    return Row(name, seconds, size, len(kernels), spilling, len(case.calls), error, scale)


@contextmanager
def noting(path: Path) -> Iterator[None]:
    """In this context, `noted_kernels` compiles, and its notes are copied to `path`."""
    own, module = job.compiled_for, gpu_compilation._MODULE
    before = os.environ.get("PYTHONPATH", "")

    def compiled_for(gpu: str, archive: bytes, place: Path, **options: Any) -> gpu_compilation.Compiled:
        found = own(gpu, archive, place, **options)
        noted = place / "kernels.json"
        path.write_text(noted.read_text() if noted.exists() else "[]")
        return found

    job.compiled_for, gpu_compilation._MODULE = compiled_for, "tests.e2e.noted_kernels"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), before])
    try:
        yield
    finally:
        job.compiled_for, gpu_compilation._MODULE = own, module
        os.environ["PYTHONPATH"] = before


def records(package: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(package) as opened:
        return {name.removeprefix("model/"): opened.read(name) for name in opened.namelist()}


def check_package(package: Path, gpu: str, code: str | None = None) -> list[dict[str, Any]]:
    """Check the code against the GPU, torch's CUDA wheel and the host's processor. Return the kernels.

    `code` is the name of the code to check in a package for several GPUs.
    """
    found, listed = records(package), KERNELS
    if code is not None:
        listed = KERNELS.replace("fakexport/", f"fakexport/{code}/")
        found = {name: content for name, content in found.items() if f"/{code}/" in name}
    kernels: list[dict[str, Any]] = json.loads(found[listed])
    _check_kernels(found, kernels, gpu)
    (wrapper,) = (name for name in found if name.endswith(".wrapper.so"))
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(found[wrapper])
        file.flush()
        missing = {name for name in _undefined(Path(file.name)) if not _is_defined(name)}
        assert not missing, missing
        machine_code = _printed("objdump", "-d", file.name)
    assert not re.search(r"%[xy]mm(1[6-9]|2\d|3[01])\b|%zmm|%k[0-7]\b", machine_code), "AVX-512"
    with read_container(package, trust=True) as opened:
        verify_package(opened)
        metadata = read_metadata(opened, code)
        assert PackageMetadata.from_text(metadata.to_text()) == metadata
    major, minor = profile_named(gpu).capability or (0, 0)
    of_torch = json.loads(
        next(text for name, text in found.items() if name.endswith("wrapper_metadata.json"))
    )
    assert metadata.instructions == (f"sm_{major}{minor}",)
    assert of_torch["AOTI_COMPUTE_CAPABILITY"] == f"{major}{minor}"
    assert of_torch["AOTI_DEVICE_KEY"] == metadata.device == "cuda"
    return kernels


def _check_kernels(found: dict[str, bytes], kernels: list[dict[str, Any]], gpu: str) -> None:
    profile = profile_named(gpu)
    major, minor = profile.capability or (0, 0)
    launched = dict(
        _launched(next(text for name, text in found.items() if name.endswith("wrapper.cpp")).decode())
    )
    cubins = {}
    for name, content in found.items():
        if name.endswith(".cubin"):
            assert content[:4] == b"\x7fELF"
            # The flags of the ELF header. From version 8 of the ABI on, the capability is their second byte.
            assert content[0x30 + (content[8] >= 8)] == 10 * major + minor, name
            for kernel, sizes in _parameters(content).items():
                cubins.setdefault(kernel, []).append(sizes)
    assert {kernel["name"] for kernel in kernels} == launched.keys()
    for kernel in kernels:
        threads, name = kernel["warps"] * 32, kernel["name"]
        assert threads <= 1024
        assert -(-kernel["registers"] // 8) * 8 * threads <= profile.registers_per_multiprocessor
        assert kernel["shared_bytes"] <= profile.shared_memory_per_block_optin_bytes
        assert launched[name] in cubins[name], (name, launched[name], cubins[name])
        assert sum(launched[name]) <= 4096


def _launched(code: str) -> Iterator[tuple[str, list[int]]]:
    """Yield each kernel with the sizes of the parameters that the host code passes."""
    for part in re.split(r"\nstatic .*?void call_(?=\w+\()", code)[1:]:
        name = part.partition("(")[0]
        body = part.partition("\n}\n")[0]
        listed = re.search(r"kernel_args_\[\] = \{(.*)\};", body)
        if listed is None:
            continue
        names = [each.strip().removeprefix("&") for each in listed[1].split(",")]
        types = {variable: kind for kind, variable in re.findall(r"^ *(\w+) (\w+) = ", body, re.M)}
        yield name, [_SIZES[types[variable]] for variable in names]


def _parameters(cubin: bytes) -> dict[str, list[int]]:
    """Return the sizes of each kernel's parameters."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = _printed(str(tool), "-elf", file.name)
    found = {}
    for part in re.split(r"\n\.nv\.info\.", text)[1:]:
        name = part.partition("\n")[0].strip()
        sizes = re.findall(r"Ordinal : (0x\w+)\s+Offset\s+: \S+\s+Size\s+: (0x\w+)", part)
        found[name] = [int(size, 16) for _, size in sorted((int(at, 16), size) for at, size in sizes)]
    return found


def _undefined(library: Path) -> set[str]:
    lines = _printed("nm", "-D", "--undefined-only", str(library)).splitlines()
    return {line.split()[-1] for line in lines if line.split()[0] == "U"}


def _is_defined(name: str) -> bool:
    """Whether torch's CUDA wheel, the driver, the CUDA runtime or the system has a symbol."""
    if "@" in name:  # Of a version of the C or C++ library.
        return True
    if name.startswith("cu"):
        return bool(re.search(rf"\b{name}\b", _headers()))
    # libtorch_cpu.so has copies of functions of the C++ library, so the linker writes no version to a name.
    return name in of_cuda_wheel() or name in _cpp_library()


@cache
def of_cuda_wheel() -> frozenset[str]:
    """The C functions of AOTInductor in torch's CUDA wheel."""
    return frozenset(line for line in _WHEEL.read_text().splitlines() if not line.startswith("#"))


@cache
def _cpp_library() -> frozenset[str]:
    path = _printed("g++", "-print-file-name=libstdc++.so.6").strip()
    lines = _printed("nm", "-D", "--defined-only", path).splitlines()
    return frozenset(line.split()[-1].partition("@")[0] for line in lines)


@cache
def _headers() -> str:
    import triton

    folder = Path(triton.__file__).parent / "backends/nvidia/include"
    return "".join((folder / name).read_text() for name in ("cuda.h", "cuda_runtime_api.h"))


def _printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _write_calls(case: Case, folder: Path, constants: bytes | None) -> None:
    weights = {name: tensor.detach().contiguous().clone() for name, tensor in case.weights.items()}
    if constants is not None:
        (folder / "constants.safetensors").write_bytes(constants)
        weights |= load_file(folder / "constants.safetensors")
    save_file(weights, folder / "weights.safetensors")
    for number, (inputs, _) in enumerate(case.calls):
        named = {f"{at:03}": each.contiguous().clone() for at, each in enumerate(inputs)}
        save_file(named, folder / f"inputs-{number}.safetensors")


def _compared(case: Case, folder: Path) -> tuple[float, float]:
    """Return the greatest difference to eager mode, and its greatest value. Whole numbers must be equal."""
    worst = scale = 0.0
    for number, (_, expected) in enumerate(case.calls):
        found = load_file(folder / f"outputs-{number}.safetensors")
        for name, eager in zip(sorted(found), expected, strict=True):
            ours = found[name]
            assert (ours.shape, ours.dtype) == (eager.shape, eager.dtype), (number, name)
            if not eager.is_floating_point():
                assert torch.equal(ours, eager), (number, name, ours, eager)
                continue
            epsilon = torch.finfo(eager.dtype).eps
            finite = eager[eager.isfinite()].double()
            large = max(1.0, finite.abs().max().item()) if finite.numel() else 1.0
            torch.testing.assert_close(
                ours, eager, rtol=16 * epsilon, atol=16 * epsilon * large, equal_nan=True
            )
            difference = (ours.double() - eager.double()).nan_to_num(0, 0, 0).abs()
            worst = max(worst, difference.max().item() if difference.numel() else 0.0)
            scale = max(scale, large)
    return worst, scale


def simulated(folder: Path) -> None:
    """Run the calls in a process of its own."""
    command = [sys.executable, "-m", "tests.e2e.simulated_gpu", str(folder)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _main(asked: Iterable[tuple[str, Path]]) -> None:
    """Print a row for each program and its empty folder, or why it has none."""
    import torch._inductor.graph
    from torch._inductor.fx_passes import post_grad  # noqa: F401

    from tests.e2e import noted_kernels  # noqa: F401

    torch.set_num_threads(1)
    simulator = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.simulated_gpu"],
        cwd=_ROOT,
        text=True,
        bufsize=1,
        stdin=-1,
        stdout=-1,
    )
    assert simulator.stdin
    assert simulator.stdout

    def simulate(folder: Path) -> None:
        print(folder, file=simulator.stdin, flush=True)
        assert simulator.stdout.readline() == "0\n", (folder / "log").read_text()

    for name, place in asked:
        if (child := os.fork()) == 0:
            gpu_compilation.run_limited = _run_forked
            try:
                row = proof(name, place, simulate)
                print(*vars(row).values(), sep="\t", flush=True)
            except BaseException as error:
                print(f"{name}\tFAILED: {(str(error).splitlines() or [''])[0][:300]}", flush=True)
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        os.waitpid(child, 0)


def _in_temporary_folders(names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            yield name, Path(place)


def _in_given_folders(lines: Iterable[str]) -> Iterator[tuple[str, Path]]:
    for line in lines:
        name, _, folder = line.rstrip("\n").partition("\t")
        yield name, Path(folder)


class Prover:
    """A process that proves one program after the other, and imports torch and Triton once."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.absent_gpu_proof", "--quick", "-"]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def kernels(self, name: str, folder: Path) -> int:
        """Prove a program in an empty folder. Return the number of its kernels."""
        assert self._process.stdin
        assert self._process.stdout
        print(name, folder, sep="\t", file=self._process.stdin, flush=True)
        row = self._process.stdout.readline().rstrip("\n").split("\t")
        assert len(row) == len(fields(Row)), row
        return int(row[3])

    def close(self) -> None:
        self._process.communicate()


def _run_forked(module: str, arguments: list[str], limits: object, **streams: Any) -> Any:
    """As `run_limited`, but fork."""
    from tests.e2e.noted_kernels import run

    if (child := os.fork()) == 0:
        for stream, at in (("stdout", 1), ("stderr", 2)):
            os.dup2(streams[stream].fileno(), at)
        os.environ.update(streams["environment"])
        try:
            run([str(os.pipe()[0]), *arguments])
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)
    return SimpleNamespace(code=os.waitpid(child, 0)[1])


if __name__ == "__main__":
    asked = sys.argv[1:]
    if "--quick" in asked:
        asked.remove("--quick")
        absent_gpu.OPTIONS["aot_inductor.compile_wrapper_opt_level"] = "O0"
    _main(_in_given_folders(sys.stdin) if asked == ["-"] else _in_temporary_folders(asked or list(PROGRAMS)))
