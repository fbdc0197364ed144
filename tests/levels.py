"""Which tests run where: all of them are too many for each change.

`tests/heavy.txt` names the tests that take more than half a second, with the seconds of one case.
`make test` leaves them to `make test-slow`, which runs one or two cases of each: as many as take
two seconds. `make test-all` runs every case, and so does pytest for a file or a folder. The file is
written from reports of runs:

    PYTEST_ADDOPTS=--junitxml=build/test.xml make test
    PYTEST_ADDOPTS=--junitxml=build/slow.xml make test-slow
    python -m tests.levels build/test.xml build/slow.xml > build/heavy.txt && mv build/heavy.txt tests/

A test that no report has keeps its line. Contract tests and one build for an absent GPU are never heavy.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

HEAVY = Path(__file__).with_name("heavy.txt")
_HEAVY_S = 0.5
_EACH_TIME = ("tests/contract/", "tests/e2e/test_absent_gpu.py::test_a_small_package")
_CASES_S = 2
_MOST_CASES = 2
_ROOT = Path(__file__).parents[1]


def heavy() -> dict[str, float]:
    """Return how many seconds a case of each heavy test takes, by the test's name."""
    lines = (line.split() for line in HEAVY.read_text(encoding="utf-8").splitlines())
    return {test: float(seconds) for test, seconds in lines}


def mark(items: Sequence[pytest.Item]) -> None:
    """Give tests the markers `heavy` and `alike`, which pyproject.toml explains."""
    seconds = heavy()
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test in seconds:
            item.add_marker(pytest.mark.heavy)
            if not (item.get_closest_marker("exhaustive") or item.get_closest_marker("chosen")):
                cases[test].append(item)
    for test, alike in cases.items():
        kept = _kept(len(alike), seconds[test])
        for at, item in enumerate(alike):
            if at not in kept:
                item.add_marker(pytest.mark.alike)


def _kept(count: int, seconds: float) -> set[int]:
    """Return which of `count` cases run in CI: the first, and if there is time the last."""
    number = min(max(int(_CASES_S // seconds), 1), _MOST_CASES)
    return {0} if number == 1 else {round(part * (count - 1) / (number - 1)) for part in range(number)}


def heavy_tests(reports: Sequence[Path], known: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield the tests whose cases take more than half a second on average, and how long one takes.

    Args:
        reports: JUnit's XML of runs.
        known: Seconds of the tests that no report has.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            if case.find("skipped") is not None:
                continue
            name = re.split(r"[\[@]", case.attrib["name"])[0]  # pytest-xdist appends `@` and the group.
            seconds[f"{_node(case.attrib['classname'])}::{name}"].append(float(case.attrib["time"]))
    mean = {test: sum(each) / len(each) for test, each in seconds.items()}
    for test, each in sorted({**known, **mean}.items()):
        if each > _HEAVY_S and not test.startswith(_EACH_TIME):
            yield test, each


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
    lines = heavy_tests([Path(report) for report in sys.argv[1:]], heavy())
    sys.stdout.writelines(f"{test} {seconds:.1f}\n" for test, seconds in lines)
