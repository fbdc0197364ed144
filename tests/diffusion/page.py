"""The table of docs/diffusers.md, with a row for each model class of diffusers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.diffusion.survey import TARGETS, Row

PAGE = Path(__file__).parents[2] / "docs" / "diffusers.md"
HEAD = "## What was tried\n"
_TEXT = """\

Small models of {small} classes with random weights are exported, saved, loaded, bound from what
`save_pretrained` wrote and run in two batches; they compute what eager mode does in float32
(`tests/zoo/test_diffusers.py`).

`python -m tests.diffusion` makes the table: every model class of diffusers {version} in its default
configuration, at full size, without weights, in float32. "Derived": the inputs are. "Eager": the model runs
with them on fake tensors. Some default configurations do not build or run in diffusers itself.

| | programs |
|---|---:|
| classes and halves | {count} |
| inputs are derived | {derived} |
| runs in eager mode | {runs} |
{targets}

| class | derived | eager | {names} | reason |
|---|---|---|{dashes}|---|
{rows}
"""
_LONGEST = 220


def rendered(rows: Sequence[Row], *, version: str, small: int) -> str:
    """Return the page with another table."""
    before, head, _ = PAGE.read_text(encoding="utf-8").partition(HEAD)
    counts = [sum(row.verdicts[at : at + 1] == ("exports",) for row in rows) for at in range(len(TARGETS))]
    return (
        before
        + head
        + _TEXT.format(
            small=small,
            version=version,
            count=len(rows),
            derived=sum(bool(row.inputs) for row in rows),
            runs=sum(row.runs for row in rows),
            targets="\n".join(
                f"| exports on `{name}` | {n} |" for name, n in zip(TARGETS, counts, strict=True)
            ),
            names=" | ".join(TARGETS),
            dashes="---|" * (len(TARGETS) - 1) + "---",
            rows="\n".join(map(_line, rows)),
        )
    )


def _line(row: Row) -> str:
    verdicts = row.verdicts or ("",) * len(TARGETS)
    cells = [f"`{row.name}`", _yes(bool(row.inputs)), _yes(row.runs) if row.inputs else "", *verdicts]
    return f"| {' | '.join(cells)} | {_reason(row.reason)} |"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _reason(text: str) -> str:
    """Return a reason in one line, without places on this machine and without a copied signature."""
    text = re.sub(r"/\S*/site-packages/", "", " ".join(text.split())).replace("|", "\\|")
    text = re.sub(r"[<>`*]", "", text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
