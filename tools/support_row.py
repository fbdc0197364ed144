"""Write the row of docs/support.md for a test run, with the versions of this environment.

    python -m pytest --junitxml=build/torch.xml
    python tools/support_row.py build/torch.xml "make test-torch TORCH=2.15"

The results of several reports are added. A row for the same versions of torch and transformers is replaced.
"""

from __future__ import annotations

import platform
import re
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).parents[1] / "docs" / "support.md"
_COUNTS = ("tests", "failures", "errors", "skipped")
_HEAD = "| torch | Python, transformers | tests | result |"


def counted(reports: Iterable[Path]) -> tuple[str, str]:
    """Return the combined result of JUnit reports as text, and the day of the latest report."""
    counts: Counter[str] = Counter()
    days = []
    for report in reports:
        for suite in ElementTree.parse(report).iter("testsuite"):
            counts += Counter({key: int(suite.get(key, 0)) for key in _COUNTS})
            days.append(datetime.fromisoformat(suite.attrib["timestamp"]).date())
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    text = f"{passed:,} passed, {failed or 'none'} failed, {counts['skipped']:,} skipped"
    return text, str(max(days))


def with_row(page: str, row: str) -> str:
    """Return the page with a new row in the table of torch versions, sorted by version."""
    before, head, after = page.partition(_HEAD + "\n")
    if not head:
        raise ValueError(f"the page has no table {_HEAD}")
    table, rest = re.match(r"((?:\|[^\n]*\n)*)(.*)", after, re.DOTALL).groups()  # type: ignore[union-attr]
    rule, *rows = table.splitlines()
    rows = [each for each in rows if _key(each) != _key(row)] + [row]
    return before + head + "\n".join([rule, *sorted(rows, key=_order)]) + "\n" + rest


def _key(row: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in row.split("|")[1:3])


def _order(row: str) -> list[int]:
    return list(map(int, re.findall(r"\d+", row.split("|")[1])[:3]))


def main() -> None:
    *reports, command = sys.argv[1:]
    result, day = counted(map(Path, reports))
    python = f"{platform.python_version()}, {version('transformers')}"
    row = f"| {version('torch')} | {python} | `{command}`, {day} | {result} |"
    PAGE.write_text(with_row(PAGE.read_text(encoding="utf-8"), row), encoding="utf-8")
    sys.stdout.write(row + "\n")


if __name__ == "__main__":
    main()
