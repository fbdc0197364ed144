"""A fault of our own: FE001."""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from fakexport.diagnostics import Diagnostic, Fix
from fakexport.rules import rule


def diagnose_internal_fault(error: BaseException, *, versions: Mapping[str, str]) -> Diagnostic:
    """Return what to report when fakexport itself raised.

    Reports:
        FE001.
    """
    frame = next(reversed(traceback.extract_tb(error.__traceback__)), None)
    place = f"{frame.filename}:{frame.lineno} in {frame.name}" if frame else "unknown"
    return rule("FE001").diagnostic(
        notes=(
            f"{type(error).__name__}: {error}",
            f"raised at {place}",
            "versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
        ),
        fix=Fix("report it with these lines and the command; `--debug` prints the whole traceback"),
    )
