"""Format diagnostics as GitHub workflow commands, which GitHub shows as annotations of changed lines."""

from __future__ import annotations

from fakexport.files import escaped_lines
from fakexport.rules.diagnostics.diagnostic import Diagnostic

_COMMAND = {"error": "error", "warning": "warning", "note": "notice"}


def render_github(diagnostic: Diagnostic) -> str:
    """Format a diagnostic as one workflow command: a single line without a line end.

    The annotation begins with the headline. The label, notes, targets and fix follow on separate lines.
    GitHub shows only ten annotations of each kind per step, so `fold` the diagnostics first.

    Args:
        diagnostic: The diagnostic. Without a position, the annotation belongs to the whole run.

    Returns:
        `::error file=model.py,line=3,col=8,title=FE201::...`. Values are escaped, so that no text from a
        model can end the command or start a new one. Unprintable characters are escaped too.
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
    """Return the headline, label, notes, targets and fix on separate lines, without the position."""
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
