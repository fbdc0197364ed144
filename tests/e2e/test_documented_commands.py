"""The commands of the pages run, in the order of their page, and print what it says."""

import os
import re
import shutil
import subprocess
import sys
from itertools import groupby

import pytest

from tests.e2e.console_pages import LEFT_OUT, PAGES, ROOT, Command, commands, steps
from tests.shell_command import fakexport_command

BELOW = ("docs", "examples", "src")


def without_numbers(text: str) -> str:
    """Sizes, seconds and machines differ: quantities do not count, nor how far columns are apart."""
    return " ".join(re.sub(r"\d[\d.,e-]*(?: ?(?:[KMGT]?i?B|[mun]?s|min)\b)?", "#", text).split())


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def passages(said: list[str]) -> list[str]:
    """What has to stand in the output, in this order: `...` is for lines that the page leaves out."""
    groups = groupby(said, lambda line: line.strip() == "...")
    texts = (without_numbers("\n".join(lines)) for is_gap, lines in groups if not is_gap)
    return [text for text in texts if text]


@pytest.fixture
def environment(tmp_path_factory):
    """Where `python` and `fakexport` are those that are tested."""
    tools = tmp_path_factory.mktemp("tools")
    (tools / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    (tools / "python").chmod(0o755)
    ours = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    with fakexport_command(tools / "fakexport"):
        yield {**os.environ, **ours, "CMAKE_BUILD_PARALLEL_LEVEL": "2"}


def test_every_page_with_commands_is_run_or_left_out_for_a_reason():
    written = [*ROOT.glob("*.md"), *(path for folder in BELOW for path in (ROOT / folder).rglob("*.md"))]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in written}
    found = {page for page, text in texts.items() if "```console" in text}

    assert found == PAGES.keys() | LEFT_OUT.keys()
    assert not PAGES.keys() & LEFT_OUT.keys()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_is_left_out_is_on_its_page(page):
    listed = [command.text for command in commands(text_of(page))]

    assert listed
    for beginning in PAGES[page].left_out:
        assert any(command.startswith(beginning) for command in listed), beginning


def test_a_workflow_runs_a_command_of_its_page():
    page = text_of("docs/ci.md")

    ran = re.findall(r"^ +- run: (fakexport .*)$", page, re.MULTILINE)

    assert ran
    assert set(ran) <= {command.text for command in commands(page)}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_runs_and_prints_what_it_says(page, environment, tmp_path):
    """In one folder, with the examples beside; `(exit code N)` as the last line says that it fails."""
    if missing := [tool for tool in PAGES[page].tools if shutil.which(tool) is None]:
        pytest.skip(f"needs {missing[0]}")
    PAGES[page].given(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")

    for step in steps(text_of(page)):
        if not isinstance(step, Command):
            step.write(tmp_path)
            continue
        command, said = step.text, step.printed
        if command.startswith(tuple(PAGES[page].left_out)):
            continue
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
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
        ended = (
            done.returncode if done.returncode >= 0 else 128 - done.returncode
        )  # by a signal, as a shell says it
        assert ended == expected, f"{command}\n{done.stdout}"
        rest = without_numbers(done.stdout)
        for passage in passages(said):
            _, is_there, rest = rest.partition(passage)
            assert is_there, f"{command}\n{passage}\nis not in\n{done.stdout}"
