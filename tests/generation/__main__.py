"""Write docs/generation.md: `python -m tests.generation`."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

from tests.generation.families import FAMILIES
from tests.generation.page import PAGE, render, tried

warnings.simplefilter("ignore")
rows = []
for family in FAMILIES:
    with tempfile.TemporaryDirectory() as folder:
        rows.append(tried(family, Path(folder)))
    print(family.name, rows[-1].verdict, rows[-1].variety, file=sys.stderr, flush=True)
PAGE.write_text(render(rows, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
