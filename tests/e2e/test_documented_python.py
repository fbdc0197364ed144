"""The Python of the documentation runs: the blocks of a page in one namespace, and the docstring examples.

A block that begins with the name of a file is that file; the commands that use it run in another test.
"""

import doctest
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(?!# \S+\.py\n)(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = sorted(path for path in [*ROOT.glob("docs/*.md")] if BLOCK.search(path.read_text()))


LONGEST = ("language_models.md",)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page.name in LONGEST else page for page in PAGES],
    ids=[page.name for page in PAGES],
)
def test_each_block_runs(page, tmp_path, monkeypatch):
    """In a folder with the examples beside, as the commands of the page."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    namespace: dict[str, object] = {}

    for block in BLOCK.finditer(text):
        before = text[: block.start("code")].count("\n")
        code = "\n" * before + block["code"]  # Line numbers of the page, if it fails.
        exec(compile(code, str(page), "exec"), namespace)


@pytest.mark.parametrize("name", fe.__all__)
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"torch": torch, "nn": nn, **{name: getattr(fe, name) for name in fe.__all__}}
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    written: list[str] = []

    for examples in doctest.DocTestFinder(recurse=False).find(names[name], name, globs=names):
        runner.run(examples, out=written.append)

    assert not "".join(written)
