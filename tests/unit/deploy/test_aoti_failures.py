"""A compilation that fails says why, and leaves nothing behind."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.exc import CppCompileError

import fakexport as fe
from fakexport.deploy import CompileFailure, DeployError
from fakexport.deploy.aoti import check_devices, compile_aoti, on_target, open_aoti
from fakexport.deploy.aoti.faults import failure_of
from fakexport.program.devices import devices_of_program
from fakexport.rules import rule

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
RULE = rule("FE803")

# A shell has what it starts in the background ignore SIGINT, and Python then leaves it so.
COMPILE = """
import signal, sys, torch
signal.signal(signal.SIGINT, signal.default_int_handler)
import fakexport as fe
from fakexport.deploy.aoti import compile_aoti
program = fe.export(lambda: torch.nn.Linear(64, 64), (torch.zeros(2, 64),))
compile_aoti(program, sys.argv[1], report=lambda line: print(line, flush=True))
"""


def factory_of(source: str, path: Path) -> Callable[[], Any]:
    path.write_text(source)
    namespace: dict[str, Any] = {"__name__": path.stem}
    exec(compile(source, str(path), "exec"), namespace)
    made: Callable[[], Any] = namespace["factory"]
    return made


def linear() -> torch.export.ExportedProgram:
    return fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))


@needs_compiler
def test_the_failing_model_gives_the_rule_at_the_marked_line(tmp_path: Path) -> None:
    source = RULE.failing_model or ""
    program = fe.export(factory_of(source, tmp_path / "model.py"))

    with pytest.raises(CompileFailure) as raised:
        compile_aoti(program, tmp_path / "model.aoti.pt2")

    (diagnostic,) = raised.value.diagnostics
    (marked,) = (number for number, line in enumerate(source.splitlines(), 1) if "# <- FE803" in line)
    assert (diagnostic.code, diagnostic.primary and diagnostic.primary.span.line) == ("FE803", marked)
    assert diagnostic.notes[0] == "the operator is `acme.positives.default`"
    assert "Unsupported return type" in diagnostic.notes[1]
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]


@needs_compiler
@pytest.mark.slow
def test_the_repaired_model_is_compiled_and_computes_the_same(tmp_path: Path) -> None:
    program = fe.export(factory_of(RULE.repaired_model or "", tmp_path / "repaired.py"))
    x = torch.randn(2, 5)

    made = compile_aoti(program, tmp_path / "model.aoti.pt2")

    assert torch.equal(open_aoti(made.path)({"x": x})["output"], x * (x > 0).sum())


@pytest.mark.slow
def test_a_missing_compiler_is_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "CXX": "/nowhere/g++"}

    command = [sys.executable, "-W", "ignore", "-c", COMPILE, tmp_path / "m.pt2"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    last = done.stderr.strip().splitlines()[-1]
    assert "AOTInductor needs a C++ compiler and none was found: `apt install g++`" in last
    assert not list(tmp_path.iterdir())


@needs_compiler
@pytest.mark.slow
def test_an_interrupted_compilation_leaves_nothing(tmp_path: Path) -> None:
    out, temporary = tmp_path / "out", tmp_path / "temporary"
    out.mkdir()
    temporary.mkdir()
    (out / "m.pt2").write_text("what was there before")
    environment = {**os.environ, "TMPDIR": str(temporary), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "own")}
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
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "own")}
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("target", ["H100", "cuda"])
def test_a_gpu_that_is_not_here_is_refused_with_what_to_do(target: str, tmp_path: Path) -> None:
    with pytest.raises(DeployError) as raised:
        compile_aoti(linear(), tmp_path / "m.pt2", target=target)

    assert str(raised.value) == (
        "AOTInductor queries the GPU that it compiles for, and cuda:0 is not available on this machine; copy "
        "the archive and the checkpoint to a machine that has it, and there compile it"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_program_on_a_gpu_is_refused_where_there_is_none() -> None:
    program = fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), target="H100", device_map="cuda:0")

    with pytest.raises(
        DeployError, match=r"cuda:0 is not available on this machine.*there run `fakexport compile that`"
    ):
        check_devices(program, None, command="fakexport compile that")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("2xH100", "for one accelerator, not for cuda:0, cuda:1"),
        ("mps", "packages for mps:0 are not supported"),
    ],
)
def test_other_targets_are_refused(target: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=message):
        compile_aoti(linear(), tmp_path / "m.pt2", target=target)


def test_a_program_for_a_gpu_can_be_put_on_the_cpu_that_is_here() -> None:
    program = fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), target="H100", device_map="cuda:0")

    check_devices(program, "cpu")

    assert devices_of_program(on_target(program, "cpu")) == ("cpu",)
    assert devices_of_program(on_target(program, None)) == ("cuda:0",)


def test_a_target_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="H1000"):
        compile_aoti(linear(), tmp_path / "m.pt2", target="H1000")
