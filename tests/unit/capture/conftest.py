"""What the tests of captures look at."""

from __future__ import annotations

import linecache
import logging
import textwrap

import pytest

from fakexport.capture.block_reuse import BlockReuse
from tests.unit.capture.answered_models import HEAD, TAIL


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
    caplog.set_level(logging.DEBUG, "fakexport.capture.capture")
    return lambda: [r.getMessage() for r in caplog.records if "traced again" in r.getMessage()]


@pytest.fixture
def reports(monkeypatch):
    """What every trace with reuse did, by class."""
    seen = []
    active = BlockReuse.active

    def watched(blocks):
        seen.append(blocks)
        return active(blocks)

    monkeypatch.setattr(BlockReuse, "active", watched)
    return seen
