"""Why `torch.export.load` did not read a file. Seen on torch 2.13.

Source: `torch/export/__init__.py:load`, which logs the error of `load_pt2` and raises one that names the log.
"""

from __future__ import annotations

import re

from torch.export.pt2_archive._package import load_pt2

__all__ = ["reading_fault", "unregistered_class"]

_UNKNOWN_CLASS = re.compile(r"Couldn't resolve type .*__torch__\.torch\.classes\.(\w+)\.(\w+)")


def reading_fault(path: str, raised: Exception) -> Exception:
    """The error behind the one that `torch.export.load` raised for a file, found by reading it once more.

    Args:
        path: The file, which the user trusts: what it says is run again.
        raised: Returned where there is none behind it.
    """
    if not str(raised).startswith("We ran into an error when deserializing"):
        return raised
    try:
        load_pt2(path)
    except Exception as error:
        return error
    return raised


def unregistered_class(fault: Exception) -> str | None:
    """`acme::Table`, if the file has an object of that C++ class and its library is not loaded."""
    found = _UNKNOWN_CLASS.search(str(fault))
    return f"{found[1]}::{found[2]}" if found else None
