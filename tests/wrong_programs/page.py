"""Write `docs/wrong_programs.md`, and read its table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .case import CASES, FIXES

__all__ = ["PAGE", "published", "render"]

# The versions of torch that each row was run with.
VERSIONS = "2.13 and 2.15"
PAGE = Path(__file__).parents[2] / "docs" / "wrong_programs.md"

_HEAD = """# Wrong programs without an error

See which models `torch.export` turns into wrong programs without an error, and how to fix them. It runs
`forward` once and records the operators. Python code runs during that trace only, so the program takes the
same branch for every input. torch rejects many models for which this is wrong, but not all. With torch
{versions}, `torch.export` exports each model below without an error, and the program returns wrong results.

The table compares the programs of `torch.export` and of fakexport with eager mode. Each program is called
one to three times. A code such as FE903 means that `fakexport check` reports this diagnostic, with the line
of the model: see [Diagnostics](rules.md). Below the table is the code of each model, with a fix that stock
`torch.export` exports correctly.

`python -m tests.wrong_programs` writes this page; do not edit it. A test runs every row and every fix.

| model | `torch.export` | fakexport |
| --- | --- | --- |
"""


def render(rows: Mapping[str, tuple[str, str]]) -> str:
    """Render the page.

    Args:
        rows: Name of a case -> the outcomes with torch.export and with fakexport.
    """
    table = [f"| [{CASES[name].title}](#{CASES[name].anchor}) | {a} | {b} |" for name, (a, b) in rows.items()]
    return "\n\n".join([_HEAD.format(versions=VERSIONS) + "\n".join(table), *map(_section, rows)]) + "\n"


def _section(name: str) -> str:
    case = CASES[name]
    parts = [f"## {case.title}", case.explanation]
    if case.varies:
        parts.append("In the example, the number of rows is dynamic.")
    if case.issue:
        url = f"https://github.com/pytorch/pytorch/issues/{case.issue}"
        parts.append(f"PyTorch issue: [#{case.issue}]({url}).")
    return "\n\n".join([*parts, _block(case.code), "Fix:", _block(FIXES[name].code)])


def _block(code: str) -> str:
    return f"```py\n{code}\n```"


def published() -> dict[str, tuple[str, str]]:
    """Read the rows of the page, by the name of the case."""
    names = {found.title: name for name, found in CASES.items()}
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| [")]
    return {names[title.partition("](")[0].lstrip("[")]: (a, b) for title, a, b in rows}
