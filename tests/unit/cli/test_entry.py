"""What the entry point does to the process it runs in."""

import gc
import os
import subprocess
import sys

from fakexport.cli import main

_PROGRAM = """
import gc, sys
from fakexport.cli import main
sys.argv = ["fakexport", "--version"]
main()
print(gc.get_threshold()[0], gc.isenabled())
"""


def test_the_collector_runs_rarely_in_a_process_of_fakexport():
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "50000 True"


def test_the_collector_of_another_program_is_left_alone(capsys):
    before = gc.get_threshold()

    assert main(["--version"]) == 0

    assert gc.get_threshold() == before
    assert capsys.readouterr().out.startswith("fakexport ")


def test_the_end_of_the_process_searches_no_garbage():
    """The objects of torch are a million, and Python would look at each of them."""
    code = """
import atexit, gc, sys
from fakexport.__main__ import main
atexit.register(lambda: print(gc.get_freeze_count() > 10_000))
sys.argv = ["fakexport", "--version"]
main()
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (process.returncode, process.stdout.splitlines()[-1]) == (0, "True"), process.stderr


_UMLAUT = """
import torch

class Größe(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x  # für alle

def factory():
    return Größe(), (torch.zeros(3),)
"""


def test_a_locale_without_unicode_prints_escapes_and_writes_utf_8(tmp_path):
    (tmp_path / "model.py").write_text(_UMLAUT, encoding="utf-8")
    command = "check model.py:factory --no-verify-fixes --html page.html"
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    done = subprocess.run(
        [sys.executable, "-m", "fakexport", *command.split()],
        cwd=tmp_path,
        env={**os.environ, **locale},
        capture_output=True,
        check=False,
    )

    assert (done.returncode, b"FE001" in done.stderr) == (1, False)
    assert b"# f\\xfcr alle" in done.stdout
    assert "# für alle" in (tmp_path / "page.html").read_text("utf-8")
