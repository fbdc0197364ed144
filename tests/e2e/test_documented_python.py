"""The Python of the documentation runs, block after block, in one namespace per page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = sorted(path for path in [*ROOT.glob("docs/*.md")] if BLOCK.search(path.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_block_runs(page):
    text = page.read_text()
    namespace: dict[str, object] = {}

    for block in BLOCK.finditer(text):
        before = text[: block.start("code")].count("\n")
        code = "\n" * before + block["code"]  # Line numbers of the page, if it fails.
        exec(compile(code, str(page), "exec"), namespace)
