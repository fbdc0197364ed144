"""How many attacks the tests try, by kind: `python -m tests.hostile.figures` writes the table of SECURITY.md.

An attack is a case of a test in these files. A case with generated inputs counts once, however many it tries.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "SECURITY.md"
BEGIN, END = "<!-- written by python -m tests.hostile.figures -->\n", "<!-- end -->\n"
KINDS = {
    "zip files and archives": [
        "tests/unit/files/container/test_hostile_zip.py",
        "tests/unit/archive/test_hostile_stock.py",
    ],
    "documents of archives": [
        "tests/unit/archive/test_hostile_documents.py",
        "tests/unit/archive/test_hostile_bundle.py",
    ],
    "TOML, YAML and patterns": ["tests/hostile/test_documents.py", "tests/hostile/test_patterns.py"],
    "budgets of memory and time": [
        "tests/hostile/test_budgets.py",
        "tests/unit/files/container/test_worst_case.py",
    ],
    "pipes, devices and other files": [
        "tests/hostile/test_special_files.py",
        "tests/hostile/test_projects_of_others.py",
    ],
    "outputs, kills and writers": [
        "tests/hostile/test_kept_inputs.py",
        "tests/hostile/test_kill_points.py",
        "tests/hostile/test_concurrent_writers.py",
    ],
    "names in text and reports": [
        "tests/hostile/test_shown_text.py",
        "tests/hostile/test_formats_of_reports.py",
        "tests/unit/exporting/python_source/test_hostile_names.py",
    ],
}


def table() -> str:
    """Return the table, with the cases that pytest collects."""
    files = [file for each in KINDS.values() for file in each]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-m", "", *files]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = ["| attacks | cases |", "|---|---:|"]
    for kind, of_kind in KINDS.items():
        begins = tuple(f"{file}::" for file in of_kind)
        rows.append(f"| {kind} | {sum(line.startswith(begins) for line in listed):,} |")
    return "\n".join(rows) + "\n"


def parts(page: str) -> tuple[str, str, str]:
    """Return the page before the table, the table, and the rest."""
    before, _, rest = page.partition(BEGIN)
    found, _, after = rest.partition(END)
    return before, found, after


if __name__ == "__main__":
    first, _, last = parts(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(f"{first}{BEGIN}{table()}{END}{last}", encoding="utf-8")
