"""Labels and notes shared by all detectors of failed captures."""

from __future__ import annotations

import re
from pathlib import PurePath

from fakexport.exporting.capture import CaptureFailure
from fakexport.report.diagnose.forward_repairs import REPAIRS
from fakexport.rules import rule
from fakexport.rules.diagnostics import Change, Diagnostic, Fix, Label, Span, source_text, with_columns

# Text that torch appends for its own developers. Users follow fakexport's fix instead.
_FOR_DEVELOPERS = re.compile(
    r"\n+(?:The error above occurred when calling torch\.export|Caused by: |For more information, run with|"
    r"For extended logs|The following call raised this error|User [Ss]tack|  Developer debug context|"
    r" ?For more details about this graph break|Set TORCHDYNAMO_VERBOSE|from user code:|"
    r"consider using data-dependent friendly APIs).*",
    re.DOTALL,
)
_MAX_NOTE_LINES = 12


def of_failure(code: str, failure: CaptureFailure, message: str, fix: Fix | None) -> Diagnostic:
    """Return a diagnostic about a failed capture, at the line that caused it, with torch's message."""
    return rule(code).diagnostic(labels=labels_of(failure, message), notes=torch_says(failure), fix=fix)


def finding(
    kind: str,
    span: Span | None = None,
    /,
    *,
    changes: tuple[Change, ...] = (),
    node: str | None = None,
    module_path: str | None = None,
    **facts: str,
) -> Diagnostic:
    """Return a diagnostic about a program, with the texts of `[found.KIND]` in `repairs.toml`.

    `facts` are values for the names in braces in the texts, except `{module}`.
    """
    texts = REPAIRS["found"][kind]
    facts["module"] = module_path or "the model"
    return rule(texts["code"]).diagnostic(
        labels=labels_at(span, texts.get("label", "").format_map(facts)),
        notes=(texts["note"].format_map(facts),),
        fix=Fix(texts["fix"].format_map(facts), changes=changes),
        node=node,
        module_path=module_path or None,
    )


def labels_of(failure: CaptureFailure, message: str) -> tuple[Label, ...]:
    """Return the line that caused the failure as primary label, and its caller if it is a different line."""
    return labels_at(failure.culprit, message, caller=failure.spans[-2] if len(failure.spans) > 1 else None)


def labels_at(span: Span | None, message: str, *, caller: Span | None = None) -> tuple[Label, ...]:
    """Return a primary label at `span` and a secondary one at `caller`, or no labels if `span` is None."""
    if span is None:
        return ()
    primary = Label(with_columns(span), message)
    if caller is None or (caller.path, caller.line) == (span.path, span.line):
        return (primary,)
    return (primary, Label(caller, "called from here", is_primary=False))


def marked(failure: CaptureFailure) -> str:
    """Return the code at the line that caused the failure, in backticks."""
    code = source_text(failure.culprit)
    return f"`{code}`" if code else "this expression"


def torch_says(failure: CaptureFailure) -> tuple[str, ...]:
    """Return torch's message as a note, without the parts for torch developers."""
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
