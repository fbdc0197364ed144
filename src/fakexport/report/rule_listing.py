"""The list of rules as text."""

from __future__ import annotations

from collections.abc import Iterable

from fakexport.report.table import layout
from fakexport.rules import Rule


def render_rules(rules: Iterable[Rule]) -> str:
    """Return one line per rule: code, severity, name, headline.

    Args:
        rules: In the order in which they are to be shown.
    Returns:
        Text that ends in one line end.
    """
    rows = [("code", "severity", "name", "what it says")]
    rows += [(rule.code, rule.severity, rule.name, rule.message) for rule in rules]
    return "\n".join(layout(rows)) + "\n"
