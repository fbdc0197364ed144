"""Write the table of docs/diffusers.md: `python -m tests.diffusion [PROCESSES]`."""

from __future__ import annotations

import logging
import sys
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

import diffusers  # noqa: E402

from tests.diffusion.page import PAGE, rendered  # noqa: E402
from tests.diffusion.survey import programs, survey  # noqa: E402
from tests.small_diffusers import MODELS  # noqa: E402

rows = []
for row in survey(programs(), processes=int(sys.argv[1]) if len(sys.argv) > 1 else 2):
    print(row.name, bool(row.inputs), row.runs, *row.verdicts, row.reason[:100], file=sys.stderr, flush=True)
    rows.append(row)
small = len({class_name for class_name, _ in MODELS.values()})
PAGE.write_text(rendered(rows, version=diffusers.__version__, small=small), encoding="utf-8")
