"""The stream that models write to while libraries are kept off it."""

import io
import sys
from contextlib import redirect_stderr

from fakexport.cli.quiet import quiet


def test_it_ends_quietly_after_the_stream_behind_it_was_closed(monkeypatch):
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
