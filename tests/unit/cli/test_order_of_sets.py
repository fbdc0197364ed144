"""A process of the command line has one order of sets of texts, as stock Python has only with a seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# The second run of this code is the one that Python was started again for.
ORDER = """
import sys
from fakexport import __main__ as command, cli
sys.argv = ["fakexport", *{arguments}]
kinds = {{"full", "sliding", "chunked", "linear", "conv", "dense", "sparse"}}
cli.main = lambda: print(sys.argv[1:], list(kinds))
command.main()
"""


def order(seed: str | None, arguments: list[str], *options: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if seed is not None:
        environment["PYTHONHASHSEED"] = seed
    command = [sys.executable, *options, "-c", ORDER.format(arguments=arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(os.name != "posix", reason="processes cannot be replaced")
def test_sets_have_one_order_whatever_the_seed_of_the_process():
    fixed = order("0", ["check", "model.py:factory"])

    assert fixed.startswith("['check', 'model.py:factory']")
    assert {order(seed, ["check", "model.py:factory"]) for seed in (None, "1", "2", "3")} == {fixed}


def test_help_is_not_started_twice_and_python_may_ignore_the_environment():
    assert len({order(seed, ["check", "--help"]) for seed in ("0", "1", "2", "3")}) > 1
    assert order("1", ["check"], "-E").startswith("['check']")
