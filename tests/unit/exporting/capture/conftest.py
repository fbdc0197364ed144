"""What the tests of captures look at."""

from __future__ import annotations

import linecache
import logging
import textwrap

import pytest

from fakexport._torch.speed.operator_memo import OperatorMemo
from tests.unit.exporting.capture.answered_models import HEAD, TAIL


@pytest.fixture
def written(tmp_path):
    """Write a model whose `forward` begins at the line `FIRST`, and return its path."""

    def write(body):
        path = tmp_path / "model.py"
        path.write_text(HEAD + textwrap.indent(textwrap.dedent(body).strip(), " " * 8) + TAIL)
        linecache.checkcache()
        return path

    return write


@pytest.fixture
def traced_again(caplog):
    """What was said about traces that were made again."""
    caplog.set_level(logging.DEBUG, "fakexport.exporting.capture.capture")
    return lambda: [r.getMessage() for r in caplog.records if "tracing again" in r.getMessage()]


@pytest.fixture
def memos(monkeypatch):
    """The memos of all traces."""
    seen = []
    active = OperatorMemo.active

    def watched(memo):
        seen.append(memo)
        return active(memo)

    monkeypatch.setattr(OperatorMemo, "active", watched)
    return seen
