"""What a model's code does to its process changes no answer, output, exit code or end of a command."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from fakexport.archive import describe
from tests.command_line import fakexport
from tests.forked import run_module

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

MODEL = """
import atexit, builtins, json, os, signal, sys, threading, time
import torch

def act():
    {}
    {}

{}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)
        self.register_buffer("scale", torch.full((2,), 3.0), persistent=False)

    def forward(self, x):
        {}
        return self.fc(x) * self.scale

def model():
    {}
    return Model(), (torch.zeros(2, 3),)

def loaded():
    return model()[0]
"""
PLACES = ("import", "factory", "forward")

# What a model's code may do and go on.
EFFECTS = {
    "leaves the folder, threads, processes and handlers, and writes to stdout": """
    os.chdir("/")
    os.write(1, b"of the model")
    threading.Thread(target=time.sleep, args=(600,)).start()
    atexit.register(os._exit, 3)
    for number in (2, 15, 17):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    if os.fork() == 0:
        os.setsid()
        time.sleep(20)
        os._exit(0)
    os.environ.clear()""",
    "closes the streams": "os.close(1); os.close(2)",
    "redirects the streams": "os.dup2(os.open('/dev/full', os.O_WRONLY), 1); os.dup2(1, 2)",
    "replaces the streams": "sys.stdout = sys.__stdout__ = sys.stderr = None",
    "replaces functions": "json.dumps = lambda *args, **options: 'of the model'; builtins.print = None",
}
# What ends the process, or its answer.
ENDINGS = {
    "exits": "os._exit(0)",
    "raises SystemExit": "sys.exit(0)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "has an alarm": "signal.alarm(1); time.sleep(60)",
    "closes every descriptor": "os.closerange(0, 1024); time.sleep(60)",
    "exits in a thread": "threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(60)",
    "exits at the end": "atexit.register(os._exit, 0); raise RuntimeError('not built')",
}
# Every command that takes a source, and what of the model it runs besides its import.
COMMANDS = {
    "check model.py:model --format json": PLACES,
    "lock model.py:model": PLACES,
    "export model.py:model -o output.pt2": PLACES,
    "plan model.py:model --format json --timeline output.json": PLACES,
    "plan model.py:model --eager --format json --html output.html": PLACES,
    "plan model.py:model --workload train": PLACES,
    "inspect model.py:model": ("import", "factory"),
    "verify-weights model.py:model ../weights.safetensors --format json": ("import", "factory"),
    "verify-buffers model.py:loaded model.py:loaded": ("import", "factory"),
    "compare model.py:model ../model.pt2 --format json": PLACES,
    "bench model.py:model --modes eager,weights --warmup 0 --repeat 2 --format json": PLACES,
    "sweep zoo.yaml -o output.jsonl": PLACES,
}
# Every command that takes a program and libraries of operators; the model is the library here.
COMMANDS |= {
    f"{command} --library model.py": ("import",)
    for command in (
        "inspect ../model.pt2 --format json",
        "bind ../model.pt2 ../weights.safetensors -o output.pt2",
        "bundle encode=../model.pt2 -o output.pt2",
        "run ../model.pt2 ../weights.safetensors --inputs ../inputs.safetensors -o output.safetensors",
        "source ../model.pt2 -o output.py",
        "view ../model.pt2 -o output.json",
        "diff ../model.pt2 ../model.pt2 --html output.html",
        "retarget ../model.pt2 --to cpu=cuda:0 -o output.pt2",
        "compile ../model.pt2 ../weights.safetensors --to onnx -o output.onnx",
    )
}
_WRITTEN = ("output.pt2", "output.json", "output.html", "output.safetensors", "output.py", "output.onnx")


def cases(codes: Iterable[str]) -> list[ParameterSet]:
    """Each command with one of the codes, each code with some commands, at a place that is not `forward`."""
    chosen = zip(COMMANDS.items(), cycle(codes), strict=False)
    return [
        pytest.param(command, places[:2][-1], code, marks=pytest.mark.slow)
        for (command, places), code in chosen
    ]


def source(place: str = "", code: str = "pass") -> str:
    """The model; its code acts once in a process, at this place."""
    at = {each: "act()" if each == place else "pass" for each in PLACES}
    once = "global act; act = lambda: None"
    return MODEL.format(once, code, at["import"], at["forward"], at["factory"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With weights and a program of the model."""
    safetensors = pytest.importorskip("safetensors.torch")
    import torch

    found = tmp_path_factory.mktemp("models")
    safetensors.save_file({"x": torch.ones(2, 3)}, found / "inputs.safetensors")
    weights = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}
    safetensors.save_file(weights, found / "weights.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found)
        (found / "model.py").write_text(source())
        fakexport("export", "model.py:model", "-o", "model.pt2")
    return found


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A new working directory below it."""
    place = folder / re.sub(r"\W", "_", request.node.name)[-120:]
    place.mkdir()
    (place / "zoo.yaml").write_text("models: [model.py:model]\ntargets: [cpu]\ntimeout: 100\n")
    monkeypatch.chdir(place)
    return place


def shape(text: str) -> str:
    """Without numbers, which say how long something took, and the room that they have."""
    return re.sub(r"\b\d[\d.,]*(e[-+]?\d+)?( [a-zμ]+)?\b|(?<=  ) +", "", text)


def run(command: str, model: str) -> tuple[int, str, set[str]]:
    """Return the exit code, what was written to stdout, and the files that were written."""
    Path("model.py").write_text(model)
    before = {path.name for path in Path.cwd().iterdir()}
    start = time.monotonic()

    done = run_module("fakexport", *command.split())

    assert time.monotonic() - start < 120, done.stderr
    written = {path.name for path in Path.cwd().iterdir()} - before - {"__pycache__"}
    if "fakexport.lock" in written:
        written.add(re.sub(r"[^\n]*versions[^\n]*", "", Path("fakexport.lock").read_text()))
    if "output.jsonl" in written:
        (record,) = map(json.loads, Path("output.jsonl").read_text().splitlines())
        written.add(f"{record['status']}: {record['report'] is not None}")
    if "output.pt2" in written:
        written.add(str(len(describe("output.pt2").methods)))
    for path in Path.cwd().glob("output.*"):
        path.unlink()
    Path("fakexport.lock").unlink(missing_ok=True)
    return done.returncode, shape(done.stdout), written


_right: dict[str, tuple[int, str, set[str]]] = {}


def expected(command: str) -> tuple[int, str, set[str]]:
    """What the command does with a model that does nothing else."""
    if command not in _right:
        _right[command] = run(command, source())
    return _right[command]


@pytest.mark.parametrize(("command", "place", "effect"), cases(EFFECTS))
def test_an_effect_changes_nothing(command: str, place: str, effect: str, here: Path) -> None:
    right = expected(command)

    found = run(command, source(place, EFFECTS[effect]))

    assert right[0] == 0
    assert found == right
    assert not Path("/output.pt2").exists()


@pytest.mark.parametrize(("command", "place", "ending"), cases(ENDINGS))
def test_an_ending_is_a_failure(command: str, place: str, ending: str, here: Path) -> None:
    code, out, written = run(command, source(place, ENDINGS[ending]))

    if command.startswith("bench") and code == 0:  # A format that fails is a cell of the table.
        assert "the process exited with code" in out
    else:
        assert code in (1, 2), out
    assert not written & {*_WRITTEN}
