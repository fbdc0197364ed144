"""What `make test-torch` relies on: the table of what versions lack, and the row that it writes."""

from __future__ import annotations

import pytest

from tests.contract.source_tree import ROOT
from tests.versions import LACKS, Lack, release
from tools.support_row import counted, with_row

PAGE = """# Supported platforms

| torch | Python, transformers | tests | result |
|---|---|---|---|
| 2.9.1 | 3.11.7, 5.17.0 | old | old |
| 2.15.0+cu132 | 3.11.7, 5.24.0 | old | old |

The tests ran on Linux.
"""


@pytest.mark.parametrize("lack", LACKS, ids=lambda lack: lack.reason)
def test_a_lack_names_tests_that_exist(lack):
    for start in lack.tests:
        file, _, test = start.partition("::")

        path = ROOT / file
        function = f"def {test.partition('[')[0]}"
        assert path.is_dir() or (path.is_file() and function in path.read_text("utf-8"))
    assert lack.below is not None or lack.since is not None


@pytest.mark.parametrize(
    ("below", "since", "expected"),
    [("2.13", None, True), ("2.12", None, False), (None, "2.12", True), (None, "2.13", False)],
)
def test_a_lack_holds_for_the_versions_that_it_names(monkeypatch, below, since, expected):
    monkeypatch.setattr("importlib.metadata.version", lambda package: "2.12.1+cu130")

    assert Lack("torch", "it", ("tests",), below=below, since=since).holds is expected
    assert release("2.12.1+cu130") == (2, 12)


def test_a_row_replaces_that_of_the_same_versions(tmp_path):
    report = tmp_path / "tests.xml"
    suite = (
        '<testsuite tests="10" failures="1" errors="1" skipped="3" timestamp="2026-11-28T10:00:00+00:00"/>'
    )
    report.write_text(f"<testsuites>{suite}</testsuites>")
    result, last = counted([report, report])

    added = with_row(PAGE, f"| 2.15.0+cu132 | 3.11.7, 5.24.0 | `make`, {last} | {result} |")
    added = with_row(added, "| 2.11.0 | 3.12.1, 5.17.0 | new | new |")

    rows = [line for line in added.splitlines() if line.startswith("| 2")]
    assert rows == [
        "| 2.9.1 | 3.11.7, 5.17.0 | old | old |",
        "| 2.11.0 | 3.12.1, 5.17.0 | new | new |",
        "| 2.15.0+cu132 | 3.11.7, 5.24.0 | `make`, 2026-11-28 | 10 passed, 4 failed, 6 skipped |",
    ]
    assert added.endswith("\n\nThe tests ran on Linux.\n")
