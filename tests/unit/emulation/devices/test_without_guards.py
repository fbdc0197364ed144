"""Where torch allows no device guards, and the system has not what Unix has: what works, and what is said."""

import subprocess
import sys
from pathlib import Path

import pytest

# A process that lacks what Windows lacks. The guards are refused as where libc10 has another name.
PREAMBLE = """
import contextlib, io, os, sys
from pathlib import Path
import torch, typer, rich, safetensors.torch, tempfile, multiprocessing.pool
for flag in ("NONBLOCK", "NOCTTY", "CLOEXEC", "DIRECTORY", "NOFOLLOW", "TMPFILE"):
    delattr(os, f"O_{flag}")
del os.pread, os.geteuid, os.getuid
os.supports_dir_fd = set()
tempfile._O_TMPFILE_WORKS = False
for name in ("resource", "pwd", "grp", "fcntl", "termios"):
    sys.modules[name] = None
from fakexport._torch.emulation import device_guard
device_guard.library_path = lambda name: Path("absent", name)
import fakexport as fe
from fakexport.cli import main

def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()
"""
MODEL = """
import torch
from torch import nn


class Moves(nn.Module):
    def forward(self, x):
        return (x + torch.ones(1, device="cuda")).cpu()


def factory():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).eval(), (torch.zeros(2, 4),)


def moves():
    return Moves(), (torch.zeros(2, 4),)
"""


ONE_LINE = """
code, out, err = run("check", "model.py:factory", "--target", "cpu", "--no-progress")
assert code == 0 and "1 of 1 target exports" in out, (code, out, err)

code, out, err = run("check", "model.py:factory", "--target", "cpu", "--target", "H100", "--no-progress")
assert code == 2 and not out, (code, out, err)
assert err.count("\\n") == 1 and "The target cpu works" in err, err
assert "H100-80GB cannot be emulated on this platform" in err, err

code, out, err = run("check", "model.py:moves", "--target", "cpu", "--no-progress")
assert code == 1 and "error[FE505]" in out and "model.py:8" in out, (code, out, err)

try:
    fe.emulate("8xH100").__enter__()
except RuntimeError as error:
    assert "8xH100-80GB cannot be emulated on this platform" in str(error)
else:
    raise AssertionError("devices were emulated")
"""
ARCHIVE = """
import model
code, out, err = run("export", "model.py:factory", "--target", "cpu", "-o", "model.pt2")
assert code == 0, (code, out, err)
eager, (x,) = model.factory()
safetensors.torch.save_file(dict(eager.state_dict()), "weights.safetensors")
code, out, err = run("bind", "model.pt2", "weights.safetensors", "-o", "bound.pt2")
assert code == 0, (code, out, err)
assert torch.equal(fe.load("bound.pt2").module()(x), eager(x))
assert run("devices")[0] == run("inspect", "bound.pt2")[0] == 0
"""


@pytest.mark.slow
def test_the_cpu_is_checked_and_exported_and_a_gpu_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)

    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + ONE_LINE + ARCHIVE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
