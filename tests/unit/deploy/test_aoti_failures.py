"""A compilation that fails says why, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch._inductor.exc import CppCompileError

import fakexport as fe
from fakexport.deploy import CompileFailure, DeployError
from fakexport.deploy.aoti import absent_gpu, compile_aoti, each_target, host, on_target
from fakexport.deploy.aoti.faults import failure_of
from fakexport.deploy.aoti.host import Gpu, nvidia_gpu
from fakexport.exporting.program.devices import devices_of_program

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# A shell has what it starts in the background ignore SIGINT, and Python then leaves it so.
COMPILE = """
import signal, sys, torch
signal.signal(signal.SIGINT, signal.default_int_handler)
import fakexport as fe
from fakexport.deploy.aoti import compile_aoti
program = fe.export(lambda: torch.nn.Linear(64, 64), (torch.zeros(2, 64),))
compile_aoti(program, sys.argv[1], report=lambda line: print(line, flush=True))
"""


def linear() -> torch.export.ExportedProgram:
    return fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))


def with_own_cache(folder: Path) -> dict[str, str]:
    """The environment with an empty cache. Inductor would first compile ten programs to try vector units."""
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "own"), "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    return {**os.environ, **own}


@needs_compiler
@pytest.mark.slow
def test_an_interrupted_compilation_leaves_nothing(tmp_path: Path) -> None:
    out, temporary = tmp_path / "out", tmp_path / "temporary"
    out.mkdir()
    temporary.mkdir()
    (out / "m.pt2").write_text("what was there before")
    environment = {**with_own_cache(tmp_path), "TMPDIR": str(temporary)}
    command = [sys.executable, "-W", "ignore", "-c", COMPILE, out / "m.pt2"]

    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert b"compiling" in process.stdout.readline()
        while not list(temporary.glob("fakexport-aoti-*/code/*")) and process.poll() is None:
            time.sleep(0.02)  # Until the compiler is at work.
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)

    assert process.returncode != 0
    assert b"KeyboardInterrupt" in errors
    assert [path.name for path in out.iterdir()] == ["m.pt2"]
    assert (out / "m.pt2").read_text() == "what was there before"
    assert not list(temporary.glob("fakexport-*"))


@needs_compiler
@pytest.mark.slow
def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    environment = with_own_cache(tmp_path)
    command = [sys.executable, "-W", "ignore", "-c", COMPILE, out / "m.pt2"]

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    done = subprocess.run(
        command, env=environment, preexec_fn=limited, capture_output=True, text=True, check=False
    )

    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith("DeployError: the C++ compiler failed: File too large")
    assert not list(out.iterdir())


def test_a_folder_that_is_not_there_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    done: list[str] = []

    with pytest.raises(DeployError, match="none: no such folder"):
        compile_aoti(linear(), tmp_path / "none" / "m.pt2", report=done.append)

    assert not done


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            CppCompileError(["g++"], "g++: fatal error: Killed signal terminated program cc1plus"),
            "the C++ compiler failed: Cannot allocate memory",
        ),
        (MemoryError(), "AOTInductor failed: Cannot allocate memory"),
    ],
)
def test_a_machine_without_memory_is_no_fault_of_the_program(error: Exception, message: str) -> None:
    found = failure_of(error)

    assert not isinstance(found, CompileFailure)
    assert str(found) == message


@needs_compiler
def test_what_no_package_can_describe_is_refused_before_it_is_compiled(tmp_path: Path) -> None:
    program = fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 8)[:, :4],))
    done: list[str] = []

    with pytest.raises(DeployError, match="is a view of a larger tensor"):
        compile_aoti(program, tmp_path / "m.pt2", report=done.append)

    assert not done


def test_a_missing_compiler_is_one_line(tmp_path: Path) -> None:
    with (
        inductor_config.patch({"cpp.cxx": ("/nowhere/g++",)}),
        pytest.raises(DeployError, match="C\\+\\+ compiler, but none was found: run `apt install g\\+\\+`"),
    ):
        compile_aoti(linear(), tmp_path / "m.pt2")

    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_the_gpu_to_compile_for_is_that_of_the_program_or_the_target() -> None:
    program = fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), target="A100", device_map="cuda:0")

    assert absent_gpu(program, None) == "A100-80GB"
    assert absent_gpu(program, "H100") == "H100-80GB"
    assert absent_gpu(program, "cpu") is None
    assert absent_gpu(linear(), None) is None
    with pytest.raises(DeployError, match="name the GPU with --target, such as H100"):
        absent_gpu(linear(), "cuda")
    assert devices_of_program(on_target(program, "cpu")) == ("cpu",)
    assert devices_of_program(on_target(program, None)) == ("cuda:0",)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_equal_targets_are_one_and_no_target_is_the_devices_of_the_program() -> None:
    assert each_target(["H100", "A100", "H100"]) == ("H100", "A100")
    assert each_target("H100") == ("H100",)
    assert each_target([]) == each_target(None) == (None,)


def test_an_operator_of_a_library_is_refused_without_the_gpu(tmp_path: Path) -> None:
    with torch.library._scoped_library("absent_gpu_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        twice = torch.ops.absent_gpu_test.twice

        class Twice(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return twice(x)

        program = fe.export(Twice, (torch.zeros(3, 4),), target="H100", device_map="cuda:0")
        with pytest.raises(DeployError, match=r"absent_gpu_test\.twice\.default, which a library defines"):
            compile_aoti(program, tmp_path / "m.pt2")


def test_a_program_on_several_gpus_is_refused_for_a_target_of_one(tmp_path: Path) -> None:
    layers = {"0": "cuda:0", "1": "cuda:1"}
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    program = fe.export(lambda: model, (torch.zeros(3, 4),), target="2xH100", device_map=layers)

    for target in ("H100", None):
        with pytest.raises(DeployError, match="has several: cuda:0, cuda:1"):
            compile_aoti(program, tmp_path / "m.pt2", target=target)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_triton_a_gpu_that_is_not_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else find(name))

    with pytest.raises(DeployError) as raised:
        compile_aoti(linear(), tmp_path / "m.pt2", target="H100")

    assert str(raised.value).startswith(
        "H100-80GB is not available on this machine, and compiling for it needs Triton: pip install "
    )
    assert "triton>=" in str(raised.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_what_needs_the_gpu_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    program = fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), target="H100", device_map="cuda:0")
    weights = {"weight": torch.ones(2, 4), "bias": torch.zeros(2)}

    for options, message in (
        ({"to": "aoti", "checkpoint": weights}, "compile without the checkpoint"),
        ({"to": "cpp-project", "checkpoint": weights}, "compile without the checkpoint"),
        (
            {"to": "aoti", "target": "MI300X"},
            "packages for MI300X can only be compiled on a machine with this GPU",
        ),
        (
            {"to": "aoti", "target": "H100", "tune": True},
            "H100-80GB is not available on this machine, so its kernels cannot be timed",
        ),
    ):
        with pytest.raises(DeployError, match=message):
            fe.compile(program, tmp_path / "m.pt2", **options)
    with pytest.raises(DeployError, match="so the weights cannot be inside the package"):
        compile_aoti(fe.bind(linear(), weights), tmp_path / "m.pt2", target="H100", weights="inside")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(
    ("name", "capability", "target", "expected"),
    [
        ("NVIDIA H200", (9, 0), None, Gpu("H200", is_here=True)),
        ("NVIDIA H200", (9, 0), "cuda", Gpu("H200", is_here=True)),
        ("NVIDIA H200", (9, 0), "H100", Gpu("H100-80GB", is_here=True)),  # As on a machine without a GPU.
        ("NVIDIA H200", (9, 0), "A100", Gpu("A100-80GB", is_here=False)),
        ("a GPU without a profile", (9, 0), None, None),
        ("AMD Instinct MI300X", (9, 4), None, None),
    ],
)
def test_the_gpu_to_compile_for_on_a_machine_with_a_gpu(
    name: str,
    capability: tuple[int, int],
    target: str | None,
    expected: Gpu | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), target="H100", device_map="cuda:0")
    monkeypatch.setattr(host, "exists_here", lambda device: True)
    monkeypatch.setattr(host, "_has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)

    assert nvidia_gpu(program, target) == expected


def test_only_kernels_of_a_gpu_are_timed(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="only the kernels of NVIDIA GPUs can be timed"):
        compile_aoti(linear(), tmp_path / "m.pt2", tune=True)
    with pytest.raises(ValueError, match="onnx has no option tune"):
        fe.compile(linear(), tmp_path / "m.onnx", to="onnx", tune=True)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("2xH100", "for one accelerator, but the target has several: cuda:0, cuda:1"),
        ("mps", "packages for mps:0 are not supported"),
        ("H1000", "H1000"),
    ],
)
def test_other_targets_are_refused(target: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((DeployError, ValueError), match=message):
        compile_aoti(linear(), tmp_path / "m.pt2", target=target)
