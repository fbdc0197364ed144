"""Labels and notes that every detector of a failed capture makes the same way."""

from __future__ import annotations

import re
from pathlib import PurePath

from fakexport.capture import CaptureFailure
from fakexport.diagnostics import Diagnostic, Fix, Label, Span, with_columns
from fakexport.rules import rule

# What torch appends for its own developers; the user's next step is our fix.
_FOR_DEVELOPERS = re.compile(
    r"\n+(?:The error above occurred when calling torch\.export|Caused by: |For more information, run with|"
    r"For extended logs|The following call raised this error|User [Ss]tack|  Developer debug context|"
    r" ?For more details about this graph break|Set TORCHDYNAMO_VERBOSE|from user code:|"
    r"consider using data-dependent friendly APIs).*",
    re.DOTALL,
)
_MAX_NOTE_LINES = 12


def of_failure(code: str, failure: CaptureFailure, message: str, fix: Fix | None) -> Diagnostic:
    """Return the finding of a rule about a failed capture, at its culprit, with torch's own message."""
    return rule(code).diagnostic(labels=labels_of(failure, message), notes=torch_says(failure), fix=fix)


def labels_of(failure: CaptureFailure, message: str) -> tuple[Label, ...]:
    """Return the culprit as primary label, and the frame that called it where that is another place."""
    return labels_at(failure.culprit, message, caller=failure.spans[-2] if len(failure.spans) > 1 else None)


def labels_at(span: Span | None, message: str, *, caller: Span | None = None) -> tuple[Label, ...]:
    """Return a primary label at `span`, and a secondary one at `caller`; none where no place is known."""
    if span is None:
        return ()
    primary = Label(with_columns(span), message)
    if caller is None or (caller.path, caller.line) == (span.path, span.line):
        return (primary,)
    return (primary, Label(caller, "called from here", is_primary=False))


def torch_says(failure: CaptureFailure) -> tuple[str, ...]:
    """Return torch's own message as a note, without what it says to its developers."""
    text = _FOR_DEVELOPERS.sub("", failure.messages[0]).strip()
    lines = text.splitlines()[:_MAX_NOTE_LINES]
    return (f"{failure.error_types[0]}: " + "\n".join(lines).rstrip(),) if lines else ()


def place_text(span: Span) -> str:
    """Return `model.py:8`."""
    return f"{PurePath(span.path).name}:{span.line}"


def headline(diagnostic: Diagnostic) -> str:
    """Return `error[FE201] at model.py:8: data-dependent branch: condition depends on tensor values`."""
    place = f" at {place_text(diagnostic.primary.span)}" if diagnostic.primary else ""
    return f"{diagnostic.severity}[{diagnostic.code}]{place}: {diagnostic.message}"
