"""Ctrl-C in each phase of a command: nothing is left, no process runs on, and one line is printed."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.command_line import fakexport

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and other systems do not fork"),
]

# Each phase leaves files that it does not delete and a child process, says that it is there, and waits.
MODELS = """
import subprocess, tempfile, time
from pathlib import Path
import torch
from torch import nn

def wait():
    tempfile.mkdtemp()
    tempfile.mkstemp()
    subprocess.Popen(["sleep", "600"])
    Path("reached").touch()
    time.sleep(600)

class Traced(nn.Module):
    def forward(self, x):
        wait()
        return x

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(3, 3), Traced()) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def built():
    wait()

def traced(): return Slow(), (torch.ones(3),)
def quick(): return nn.Linear(3, 3), (torch.ones(3),)
"""
ZOO = "models: [models.py:traced]\ntargets: [cpu, H100]\n"
INTERRUPTED = (130, -signal.SIGINT)  # Python repeats a signal that it got within `eval`.


class Started:
    """A command in its own process group, with its own folder for temporary files."""

    def __init__(self, folder, *arguments, has_terminal=False):
        self.work, self.temporary = folder / "work", folder / "tmp"
        for each in (self.work, self.temporary):
            each.mkdir()
        (self.work / "models.py").write_text(MODELS)
        (self.work / "zoo.yaml").write_text(ZOO)
        self.mark = f"FAKEXPORT_TEST={folder}"
        name, value = self.mark.split("=")
        self.environment = {**os.environ, "TMPDIR": str(self.temporary), name: value}
        self.environment |= {
            "NO_COLOR": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        }
        self.arguments = [sys.executable, "-m", "fakexport", *arguments]
        self.terminal, self.errors = os.openpty() if has_terminal else (None, subprocess.PIPE)

    def __enter__(self):
        self.process = subprocess.Popen(
            self.arguments,
            cwd=self.work,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            start_new_session=True,
            text=True,
        )
        return self

    def __exit__(self, *_):
        for pid in self.running():
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def wait_for(self, condition):
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)

    def interrupted(self):
        """Press Ctrl-C; return the exit code, stdout and stderr."""
        os.killpg(self.process.pid, signal.SIGINT)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def running(self):
        return [int(each.parent.name) for each in Path("/proc").glob("[0-9]*/environ") if self._is_ours(each)]

    def _is_ours(self, environment):
        try:
            return self.mark.encode() in environment.read_bytes()
        except OSError:  # It has ended, or is not ours to read.
            return False

    def left(self):
        known = {"models.py", "zoo.yaml", "reached"}
        return [*self.temporary.iterdir(), *(each for each in self.work.iterdir() if each.name not in known)]


def assert_nothing_left(started, kept=()):
    until = time.monotonic() + 10  # The kernel ends killed processes in its own time.
    while started.running() and time.monotonic() < until:
        time.sleep(0.02)
    assert started.running() == []
    assert [each for each in started.left() if each.name not in kept] == []


chosen = partial(pytest.param, marks=pytest.mark.chosen)


@pytest.mark.parametrize(
    ("name", "options", "source"),
    [
        chosen("check", ["--target", "cpu", "--target", "H100", "--html", "page.html"], "built"),
        chosen("check", ["--target", "H100"], "traced"),
        chosen("export", ["-o", "model.pt2"], "built"),
        pytest.param("plan", ["--html", "page.html"], "traced", marks=pytest.mark.exhaustive),
        pytest.param("lock", [], "built", marks=pytest.mark.exhaustive),
    ],
)
def test_ctrl_c_while_a_model_is_built_or_traced(tmp_path, name, options, source):
    with Started(tmp_path, name, f"models.py:{source}", *options) as started:
        started.wait_for((started.work / "reached").exists)

        code, out, err = started.interrupted()

        assert (code in INTERRUPTED, out, err) == (True, "", "error: interrupted\n")
        assert_nothing_left(started)


def test_ctrl_c_during_a_sweep_keeps_only_complete_results(tmp_path):
    with Started(tmp_path, "sweep", "zoo.yaml", "-o", "run.jsonl", "--jobs", "2") as started:
        started.wait_for((started.work / "reached").exists)

        code, out, err = started.interrupted()

        assert (code in INTERRUPTED, out, err) == (True, "", "error: interrupted\n")
        assert (started.work / "run.jsonl").read_text() == ""
        assert_nothing_left(started, kept=["run.jsonl"])


def test_ctrl_c_while_the_processes_of_a_sweep_are_prepared(tmp_path):
    with Started(tmp_path, "sweep", "zoo.yaml", "-o", "run.jsonl") as started:
        started.wait_for(lambda: any(b"fork_server" in command_line(pid) for pid in started.running()))

        code, out, err = started.interrupted()

        assert (code in INTERRUPTED, out, err) == (True, "", "error: interrupted\n")
        assert_nothing_left(started, kept=["run.jsonl"])


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("form", ["aoti", pytest.param("cpp-project", marks=pytest.mark.exhaustive)])
def test_ctrl_c_while_a_compiler_runs(tmp_path, form):
    exported = tmp_path / "model.pt2"
    (tmp_path / "quick.py").write_text(MODELS)
    fakexport("export", f"{tmp_path}/quick.py:quick", "-o", exported)
    with Started(tmp_path, "compile", str(exported), "--to", form, "-o", "out.pt2") as started:
        started.wait_for(lambda: any(b"cc1plus" in command_line(pid) for pid in started.running()))

        code, out, err = started.interrupted()

        assert (code in INTERRUPTED, out, err) == (True, "", "error: interrupted\n")
        assert_nothing_left(started)


def test_ctrl_c_while_the_command_line_is_imported(tmp_path):
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])

    done = subprocess.run(
        [sys.executable, "-m", "fakexport", "check", "models.py:quick"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode in INTERRUPTED, done.stdout, done.stderr) == (True, "", "error: interrupted\n")


def test_a_terminal_shows_the_step_the_module_and_the_time(tmp_path):
    with Started(tmp_path, "check", "models.py:traced", has_terminal=True) as started:
        started.wait_for((started.work / "reached").exists)
        shown = b""

        while b"trace, layers.0.1, 1 s ..." not in shown:
            shown += os.read(started.terminal, 4096)

        os.killpg(started.process.pid, signal.SIGINT)
        while not shown.endswith(b"error: interrupted\r\n"):
            shown += os.read(started.terminal, 4096)
        assert shown.endswith(b"\r\x1b[Kerror: interrupted\r\n")
        assert_nothing_left(started)


def test_a_timeout_names_the_module(tmp_path):
    for name in ("check", "sweep"):
        (tmp_path / name).mkdir()
    check = Started(tmp_path / "check", "check", "models.py:traced", "--timeout", "20")
    sweep = Started(tmp_path / "sweep", "sweep", "limited.yaml", "-o", "run.jsonl")
    (sweep.work / "limited.yaml").write_text("models: [models.py:traced]\ntimeout: 20\n")
    where = "stopped after 20 s: [1/1] cpu: trace, layers.0.1"
    with check, sweep:  # At the same time.
        _, err = check.process.communicate()
        out, _ = sweep.process.communicate()

        assert where in err
        assert where in out
        assert (check.process.returncode, sweep.process.returncode) == (124, 1)
        for started in (check, sweep):
            assert_nothing_left(started, kept=["run.jsonl", "limited.yaml"])
