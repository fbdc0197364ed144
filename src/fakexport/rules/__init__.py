"""Every fault that fakexport diagnoses, one file each. Does not import torch: `fakexport explain` is fast."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from difflib import get_close_matches

from fakexport.error import InvalidValue
from fakexport.rules.rule import Rule

__all__ = ["Rule", "all_rules", "rule"]


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, in the order of the codes: the `RULE` of each file of this package."""
    names = {found.name for found in pkgutil.iter_modules(__path__)} - {"rule"}
    rules: list[Rule] = [importlib.import_module(f"{__name__}.{name}").RULE for name in names]
    return tuple(sorted(rules, key=lambda known: known.code))


def rule(code: str) -> Rule:
    """Return the rule with a code or a name.

    Raises:
        ValueError: no such rule; the message, one line, names the nearest codes.

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
