"""A diagnostic as plain data, for JSON reports and other programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fakexport.diagnostics.diagnostic import Diagnostic


def to_dict(diagnostic: Diagnostic) -> dict[str, Any]:
    """Return every field as dicts, lists, strings, numbers, booleans and None.

    The keys are the field names, in the order of the class, and none is left out when it is empty:
    a reader needs no defaults, and the same diagnostic always returns the same bytes.

    Args:
        diagnostic: The finding.
    Returns:
        A new dict that shares nothing with the diagnostic.
    """
    fields = asdict(diagnostic)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
