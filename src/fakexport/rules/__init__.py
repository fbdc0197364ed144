"""The faults that fakexport diagnoses, with one Markdown page for each diagnostic code.

This package does not import torch, so that `fakexport explain` is fast.
"""

from __future__ import annotations

import functools
from difflib import get_close_matches
from importlib.resources import as_file
from pathlib import Path

from fakexport.error import InvalidValue
from fakexport.files import plugin_fault, plugin_file, plugins
from fakexport.rules.rule import Rule

__all__ = ["Rule", "all_rules", "installed_rules", "rule"]


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Return the rule of each page of this package, ordered by code."""
    pages = Path(__file__).parent.glob("*.md")
    return tuple(sorted(map(Rule.read, pages), key=lambda known: known.code))


@functools.cache
def installed_rules() -> tuple[Rule, ...]:
    """Return the rules of installed packages: the pages next to the function of each entry point.

    Raises:
        PluginError: a page is invalid, or its code is one of fakexport, which begins with FE.
    """
    found: list[Rule] = []
    for entry in plugins("rules").values():
        try:
            with as_file(plugin_file(entry, ".")) as folder:
                pages = list(map(Rule.read, sorted(folder.glob("*.md"))))
        except ValueError as error:
            raise plugin_fault(entry, f"has an invalid page: {error}") from error
        if ours := [known.code for known in pages if known.code.startswith("FE")]:
            raise plugin_fault(entry, f"has the code {ours[0]}: codes that begin with FE are fakexport's")
        found += pages
    return tuple(found)


def rule(code: str) -> Rule:
    """Return the rule with this code or name, of fakexport or of an installed package.

    Raises:
        ValueError: There is no such rule; the message names the nearest codes in one line.

    Example:
        >>> rule("fe201").name
        'data_dependent_branch'
    """
    by_key: dict[str, Rule] = {}
    wanted = code.strip().lower().replace("-", "_")
    for rules in (all_rules, installed_rules):
        by_key |= {key: known for known in rules() for key in (known.code.lower(), known.name)}
        if wanted in by_key:
            return by_key[wanted]
    nearest = dict.fromkeys(by_key[key] for key in get_close_matches(wanted, by_key, n=3, cutoff=0.0))
    listed = ", ".join(f"{known.code} ({known.name})" for known in nearest)
    raise InvalidValue(f"unknown rule {code!r}; the nearest are {listed}")
