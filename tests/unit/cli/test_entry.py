"""What the entry point does to the process it runs in."""

import gc
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
