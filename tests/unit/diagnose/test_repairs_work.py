"""The printed fix, followed literally, leads to a model that exports and computes the same.

The share for which it does is asserted here.
"""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path

import pytest
import torch

import fakexport as fe
from tests.unit.diagnose.repair_corpus import CORPUS, Failing

LEAST_SHARE = 0.9
# What is printed for these does not lead to a model that exports; each with the reason.
KNOWN_NOT_TO_WORK = {
    "rows that are kept one by one": "how many rows there are depends on data: only masking keeps the shape",
    "key of a dictionary": "which head runs depends on data: all have to run, and one be picked",
}
PAGE = Path(__file__).parents[3] / "docs" / "benchmarks.md"


@cache
def folder() -> Path:
    import tempfile

    return Path(tempfile.mkdtemp(prefix="fakexport-repairs-"))


def written(name, *, repaired):
    path = folder() / f"{'after' if repaired else 'before'}_{list(CORPUS).index(name)}.py"
    path.write_text(CORPUS[name].source(repaired=repaired))
    return path


def checked(name, *, repaired):
    return fe.check(f"{written(name, repaired=repaired)}:factory", target=[CORPUS[name].target])


def eager(path):
    torch.manual_seed(0)
    module, args = runpy.run_path(str(path))["factory"]()
    with torch.no_grad():
        return module(*args)


@cache
def works(name):
    """Whether the repaired model exports cleanly and computes what the failing one does in eager mode."""
    report = checked(name, repaired=True)
    if not report.is_clean or not all(verdict.is_exportable for verdict in report.verdicts):
        return False
    if not CORPUS[name].is_same:
        return True
    before, after = (eager(written(name, repaired=repaired)) for repaired in (False, True))
    torch.testing.assert_close(after, before)
    return True


@pytest.mark.parametrize("name", CORPUS)
def test_the_failing_model_is_told_its_fix(name):
    report = checked(name, repaired=False)

    found = [(diagnostic.code, diagnostic.fix.message) for diagnostic in report.diagnostics]
    assert [code for code, _ in found] == [CORPUS[name].code]
    assert CORPUS[name].fix in found[0][1]


@pytest.mark.parametrize("name", CORPUS)
def test_the_fix_works_when_it_is_followed(name):
    assert works(name) == (name not in KNOWN_NOT_TO_WORK)


def test_the_share_of_fixes_that_work():
    working = sum(works(name) for name in CORPUS)

    assert len(CORPUS) >= 25
    assert working / len(CORPUS) >= LEAST_SHARE
    assert f"{working} of {len(CORPUS)} printed fixes work" in PAGE.read_text()


def test_every_error_has_a_fix_or_says_that_none_is_known(tmp_path):
    path = tmp_path / "model.py"
    failing = Failing("FE202", "no fix is known", "raise OSError('of its own')", "return x")
    path.write_text(failing.source(repaired=False))

    (found,) = fe.check(f"{path}:factory").diagnostics

    assert found.code == "FE202"
    assert found.fix.message.startswith("no fix is known for this error")
