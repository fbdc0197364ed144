"""What a shell may have done to the streams, and to memory: one line and the right exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

import fakexport as fe
from tests.forked import run_python

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux")

MODEL = """
import torch

class Loud(torch.nn.Linear):
    def forward(self, x):
        print("forward")
        return super().forward(x)

def factory():
    return Loud(4, 2).eval(), (torch.zeros(3, 4),)
"""
LITTLE = "error: out of memory: the address space is limited to"
FULL = "error: cannot write to stdout: No space left on device\n"


def shell(line: str, folder: Path) -> tuple[int, str, str]:
    """Runs a line in which FE is fakexport."""
    command = line.replace("FE", f"{sys.executable} -m fakexport")
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("FE devices >/dev/full", 2, FULL),
        ("FE --version >/dev/full", 2, FULL),
        ("FE --help >/dev/full", 2, "error: No space left on device\n"),
        ("FE devices >&-", 2, "error: cannot write to stdout: the stream is closed\n"),
        ("FE devices >&- 2>&- <&-", 2, ""),
        ("FE devices 2>&- >/dev/null", 0, ""),
        ("FE devices H10 2>&-", 2, ""),
        ("FE devices H10 2>/dev/full", 2, ""),
        ("FE devices | true", 0, ""),
        ("FE 2>/dev/full", 2, ""),
        (
            "ulimit -v 300000; FE check m.py:factory",
            2,
            LITTLE,
        ),
        (
            "ulimit -v 614400; FE inspect m.py:factory",
            2,
            LITTLE,
        ),
    ],
)
def test_a_fault_of_the_streams_is_one_line_and_exit_code_2(line, code, said, tmp_path):
    found = shell(line, tmp_path)

    assert (found[0], found[1]) == (code, "")
    assert found[2].startswith(said)
    assert found[2].count("\n") == bool(said)


CLOSED = """
import os, runpy, sys
os.close(2)
sys.stderr = None  # As the interpreter does when it starts so.
sys.argv = ["fakexport", "export", "m.py:factory", "-o", "a.pt2"]
runpy.run_module("fakexport", run_name="__main__")
"""


def test_a_verdict_does_not_depend_on_stderr(tmp_path):
    (tmp_path / "m.py").write_text(MODEL)

    done = run_python(CLOSED, folder=tmp_path)

    assert done.returncode == 0
    assert "1 of 1 target exports; 0 errors" in done.stdout
    assert fe.load(tmp_path / "a.pt2").graph_signature.user_inputs == ("x",)
