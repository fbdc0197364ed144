"""A process that ended without an answer: FE106."""

from __future__ import annotations

from collections.abc import Sequence

from fakexport.diagnostics import Diagnostic
from fakexport.rules import rule


def diagnose_process_ended(reason: str, last_lines: Sequence[str], *, target: str) -> Diagnostic:
    """Return what to report if the process that checks a target ends by itself.

    Args:
        reason: `exit code 0`, `killed by SIGKILL`.
        last_lines: The end of what it wrote.
        target: Name of the target.
    Reports:
        FE106.
    """
    written = tuple(f"it wrote: {line}" for line in last_lines)
    return rule("FE106").diagnostic(notes=(f"the process ended with {reason}", *written), targets=(target,))
