"""The stream that models write to while libraries are kept off it."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr

import pytest

from fakexport.cli.quiet import quiet


def test_it_ends_quietly_after_the_stream_behind_it_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 tells `sys.unraisablehook` what fails when a stream is finalized."""
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    behind = io.TextIOWrapper(io.BytesIO())
    with redirect_stderr(behind), quiet(is_debug=False):
        kept = sys.stdout
        print("of the model")
    behind.close()

    kept.close()
    del kept

    assert unraisable == []


def test_what_a_model_prints_is_passed_on() -> None:
    behind = io.StringIO()

    with redirect_stderr(behind), quiet(is_debug=False):
        print("of the model")

    assert behind.getvalue() == "of the model\n"
