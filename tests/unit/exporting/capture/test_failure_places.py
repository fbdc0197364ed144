"""Where a failure is said to be: in the model, and never in what called fakexport."""

from __future__ import annotations

import traceback

import pytest
import typer.main

from fakexport.exporting.capture import CaptureFailure, capture
from fakexport.exporting.program.source_span import is_user_code


def allocated_at(*paths: object) -> str:
    frames = [traceback.FrameSummary(str(path), 3, "called", lookup_line=False) for path in paths]
    return f"fake tensor allocated at:\n{''.join(traceback.format_list(frames))}"


def test_callers_of_fakexport_are_not_blamed():
    text = allocated_at(
        "/home/me/.venv/bin/fakexport",
        typer.main.__file__,
        "/home/me/run.py",
        capture.__globals__["__file__"],
    )

    assert CaptureFailure.of(AssertionError(text)).spans == ()


def test_the_model_below_fakexport_is_found():
    text = allocated_at("/home/me/run.py", capture.__globals__["__file__"], "/home/me/model.py")

    assert [span.path for span in CaptureFailure.of(AssertionError(text)).spans] == ["/home/me/model.py"]


@pytest.mark.parametrize(
    "path",
    [
        typer.main.__file__,
        "/srv/site-packages/click/core.py",
        "/srv/bin/fakexport",
        "/srv/bin/fakexport-script.py",
    ],
)
def test_the_command_line_is_no_model(path):
    assert not is_user_code(path)
