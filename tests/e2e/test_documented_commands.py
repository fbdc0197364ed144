"""The commands of docs/deploy.md run, in the order of the page, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "deploy.md"
BLOCK = re.compile(r"^```console\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (?P<command>.*(?:\\\n.*)*)\n(?P<printed>(?:(?!\$ ).*\n)*)", re.MULTILINE)
NEEDS_COMPILER = pytest.mark.skipif(
    not all(
        any((Path(folder) / tool).exists() for folder in os.get_exec_path()) for tool in ("g++", "cmake")
    ),
    reason="g++ or cmake is missing",
)


def commands() -> list[tuple[str, list[str]]]:
    """Each command of the page with the lines that it is said to print."""
    return [
        (found["command"].replace("\\\n", " "), found["printed"].splitlines())
        for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))
        for found in COMMAND.finditer(block["text"])
    ]


def without_numbers(text: str) -> str:
    """Sizes, seconds and machines differ: digits do not count, nor how far columns are apart."""
    return " ".join(re.sub(r"\d[\d.,e-]*", "#", text).split())


@pytest.mark.slow
@pytest.mark.timeout(1200)
@NEEDS_COMPILER
def test_every_command_of_the_page_runs_and_prints_what_it_says(tmp_path):
    """In one folder, with the examples beside; `(exit code N)` as the last line says that it fails."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, arguments in (("python", ""), ("fakexport", " -m fakexport")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    listed = commands()

    assert len(listed) > 8
    for command, said in listed:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        expected = 0
        if said and (code := re.fullmatch(r"\(exit code (\d+)\)", said[-1])):
            expected = int(code[1])
            said = said[:-1]
        assert done.returncode == expected, f"{command}\n{done.stdout}"
        printed = without_numbers(done.stdout)
        for line in said:
            assert without_numbers(line) in printed, f"{command}\n{line}\nis not in\n{done.stdout}"
