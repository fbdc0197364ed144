"""The faults that fakexport diagnoses, with one Markdown page for each diagnostic code.

This package does not import torch, so that `fakexport explain` is fast.
"""

from __future__ import annotations

import functools
from difflib import get_close_matches
from pathlib import Path

from fakexport.error import InvalidValue
from fakexport.rules.rule import Rule

__all__ = ["Rule", "all_rules", "rule"]


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Return the rule of each page of this package, ordered by code."""
    pages = Path(__file__).parent.glob("*.md")
    return tuple(sorted(map(Rule.read, pages), key=lambda known: known.code))


def rule(code: str) -> Rule:
    """Return the rule with this code or name.

    Raises:
        ValueError: There is no such rule; the message names the nearest codes in one line.

    Example:
        >>> rule("fe201").name
        'data_dependent_branch'
    """
    by_key = {key: known for known in all_rules() for key in (known.code.lower(), known.name)}
    wanted = code.strip().lower().replace("-", "_")
    if wanted in by_key:
        return by_key[wanted]
    nearest = dict.fromkeys(by_key[key] for key in get_close_matches(wanted, by_key, n=3, cutoff=0.0))
    listed = ", ".join(f"{known.code} ({known.name})" for known in nearest)
    raise InvalidValue(f"unknown rule {code!r}; the nearest are {listed}")
