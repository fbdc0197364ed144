"""What the tests of captures look at."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture
def traced_again(caplog):
    """What was said about traces that were made again."""
    caplog.set_level(logging.DEBUG, "fakexport.capture.capture")
    return lambda: [r.getMessage() for r in caplog.records if "traced again" in r.getMessage()]
