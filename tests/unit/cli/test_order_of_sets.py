"""A process of the command line has one order of sets of texts, as stock Python has only with a seed."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes cannot be replaced")

# What pip installs as `fakexport`, with another command.
SCRIPT = """
import sys
from fakexport import __main__ as command, cli
kinds = {"full", "sliding", "chunked", "linear", "conv", "dense", "sparse"}
cli.main = lambda: print(sys.argv[1:], list(kinds))
command.main()
"""
CHECK = ["check", "model.py:factory"]


@pytest.fixture
def order(tmp_path):
    """Runs the script under a name, in a process with a seed, and returns what it prints."""

    def run(seed, *arguments, name="fakexport", options=()):
        (tmp_path / name).write_text(SCRIPT)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
        environment |= {} if seed is None else {"PYTHONHASHSEED": seed}
        command = [sys.executable, *options, str(tmp_path / name), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    return run


def test_sets_have_one_order_whatever_the_seed_of_the_process(order):
    fixed = order("0", *CHECK)

    assert fixed.startswith("['check', 'model.py:factory']")
    assert {order(seed, *CHECK) for seed in (None, "1", "2", "3")} == {fixed}


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        pytest.param(["check", "--help"], {}, id="help"),
        pytest.param(CHECK, {"name": "of_another_program.py"}, id="a program that runs the command"),
        pytest.param(CHECK, {"options": ["-E"]}, id="Python ignores the environment"),
    ],
)
def test_other_processes_are_not_started_again(arguments, options, order):
    found = {order(seed, *arguments, **options) for seed in ("0", "1", "2", "3")}

    assert all(line.startswith(f"{arguments}") for line in found)
    assert len(found) > 1 or "options" in options
