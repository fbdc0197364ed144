"""The page of the documentation about generation, with a row for each family."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fakexport.error import FakexportError, first_line
from tests.generation.agreement import LENGTHS, NEW_TOKENS, agreement
from tests.generation.families import Family

PAGE = Path(__file__).parents[2] / "docs" / "generation.md"
_TRIED = """\
For each family, a small model with random weights in the layout of the Hugging Face hub generates
{tokens} tokens after prompts of {lengths} tokens. "equal" means that greedy decoding produces the same
tokens as `transformers.generate`. The prompts differ in length from the one used for the export, and
sliding windows are 8 tokens wide. {equal} of {count} families generate the same tokens.

`python -m tests.generation` writes this table, and `tests/zoo/test_generation.py` checks it.
"""
_ROW = re.compile(r"^\| `(?P<name>\w+)` \|[^|\n]*\|[^|\n]*\| (?P<verdict>.*?) \|$", re.MULTILINE)

_HEADLINE = "## Families\n"


@dataclass(frozen=True)
class Row:
    """One family.

    Args:
        family: What was tried.
        verdict: `equal`, or what is wrong.
        variety: Different tokens in the sequence with the most of them.
    """

    family: Family
    verdict: str
    variety: int = 0

    @property
    def is_equal(self) -> bool:
        return self.verdict == "equal"


def tried(family: Family, folder: Path) -> Row:
    """Return what became of one family; a fault of fakexport is raised."""
    try:
        found = agreement(family, folder)
    except FakexportError as error:
        said = first_line(error).replace(str(folder), "FOLDER").replace("|", "\\|")
        return Row(family, said)
    return Row(family, "equal" if found.is_equal else "other tokens", found.variety)


def render(rows: list[Row], page: str) -> str:
    """Return the page with another table; what is above it is written by hand."""
    equal = sum(row.is_equal for row in rows)
    lines = [
        _TRIED.format(
            tokens=NEW_TOKENS, lengths=" and ".join(map(str, LENGTHS)), equal=equal, count=len(rows)
        ),
        "| family | class | architecture | tokens |",
        "|---|---|---|---|",
    ]
    for row in rows:
        family = row.family
        lines.append(f"| `{family.name}` | {family.model_class} | {family.kind} | {row.verdict} |")
    return page.partition(_HEADLINE)[0] + _HEADLINE + "\n" + "\n".join(lines) + "\n"


def rows_on(text: str) -> dict[str, str]:
    """Return the verdict of each family on the page."""
    return {match["name"]: match["verdict"] for match in _ROW.finditer(text)}
