"""Which tests run where: all of them are too many for each change.

`tests/heavy.txt` names the tests that take more than half a second. `make test` leaves them to
`make test-slow`, which runs three cases of each. `make test-all` runs every case, and so does
pytest for a file or a folder. The names come from a report of a run:

    pytest --junitxml=build/tests.xml && python -m tests.levels build/tests.xml > tests/heavy.txt
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

HEAVY = Path(__file__).with_name("heavy.txt")
_HEAVY_S = 0.5
_EACH_TIME = "tests/contract/"
_CASES_OF_A_TEST = 3
_ROOT = Path(__file__).parents[1]


def mark(items: Sequence[pytest.Item]) -> None:
    """Give tests the markers `heavy` and `alike`, which pyproject.toml explains."""
    named = frozenset(HEAVY.read_text(encoding="utf-8").split())
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test in named:
            item.add_marker(pytest.mark.heavy)
            if not item.get_closest_marker("exhaustive"):
                cases[test].append(item)
    for alike in cases.values():
        last, parts = len(alike) - 1, _CASES_OF_A_TEST - 1
        kept = {round(part * last / parts) for part in range(parts + 1)}
        for at, item in enumerate(alike):
            if at not in kept:
                item.add_marker(pytest.mark.alike)


def heavy_tests(report: Path) -> Iterator[str]:
    """Yield the tests of a report (JUnit's XML) whose cases take more than half a second on average."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.attrib["name"].partition("[")[0]
        seconds[f"{_node(case.attrib['classname'])}::{name}"].append(float(case.attrib["time"]))
    for test, each in sorted(seconds.items()):
        if sum(each) / len(each) > _HEAVY_S and not test.startswith(_EACH_TIME):
            yield test


@cache
def _node(dotted: str) -> str:
    """Return `tests/test_a.py::TestB` for `tests.test_a.TestB`."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        file = Path(*parts[:length]).with_suffix(".py")
        if (_ROOT / file).is_file():
            return "::".join([file.as_posix(), *parts[length:]])
    raise ValueError(f"{dotted} is in no file of {_ROOT}")


if __name__ == "__main__":
    sys.stdout.writelines(f"{test}\n" for test in heavy_tests(Path(sys.argv[1])))
