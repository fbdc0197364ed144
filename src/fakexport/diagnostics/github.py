"""Diagnostics as GitHub workflow commands, which GitHub shows next to the changed line."""

from __future__ import annotations

from fakexport.diagnostics.diagnostic import Diagnostic
from fakexport.diagnostics.escaping import escaped_lines

_COMMAND = {"error": "error", "warning": "warning", "note": "notice"}


def render_github(diagnostic: Diagnostic) -> str:
    """Return one workflow command, one line of text without a line end.

    The headline comes first; label, notes, targets and fix follow as further lines of the annotation.
    GitHub shows ten annotations of each kind per step, so fold before rendering.

    Args:
        diagnostic: The finding. Without a place the annotation belongs to the whole run.
    Returns:
        `::error file=model.py,line=3,col=8,title=FE201::...`, all values escaped, so that no text of
        a model can end the command or start another one; what does not print is shown as an escape.
    Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions and
        `escapeData`, `escapeProperty` of @actions/core.
    """
    properties: dict[str, str] = {}
    primary = diagnostic.primary
    if primary is not None:
        properties["file"] = primary.span.path
        properties["line"] = str(primary.span.line)
        if primary.span.column is not None:
            properties["col"] = str(primary.span.column)
    properties["title"] = diagnostic.code
    listed = ",".join(f"{name}={_escape_property(value)}" for name, value in properties.items())
    return f"::{_COMMAND[diagnostic.severity]} {listed}::{_escape_data(plain_body(diagnostic))}"


def plain_body(diagnostic: Diagnostic) -> str:
    """Return headline, message, notes, targets and fix, a line each, for readers that show the place."""
    times = f" ({diagnostic.count} times)" if diagnostic.count > 1 else ""
    lines = [diagnostic.message + times]
    if diagnostic.primary is not None and diagnostic.primary.message:
        lines.append(diagnostic.primary.message)
    lines += [f"note: {note}" for note in diagnostic.notes]
    if diagnostic.targets:
        lines.append(f"targets: {', '.join(diagnostic.targets)}")
    if diagnostic.fix is not None:
        lines.append(f"{diagnostic.fix.title}: {diagnostic.fix.message}")
        if diagnostic.fix.command is not None:
            lines.append(f"run: {diagnostic.fix.command}")
    return "\n".join(lines)


def _escape_data(text: str) -> str:
    lines = (escaped_lines(line) for line in text.replace("%", "%25").split("\r"))
    return "%0D".join(lines).replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
