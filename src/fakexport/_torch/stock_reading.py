"""What torch reads of a file with several programs, and why it did not read one. Seen on torch 2.13.

Source: `torch/export/__init__.py:load`, which logs the error of `load_pt2`, raises one that names the log,
and gives only the program of the name `model`.
"""

from __future__ import annotations

import re

from torch.export import ExportedProgram
from torch.export.pt2_archive._package import load_pt2

_UNKNOWN_CLASS = re.compile(r"Couldn't resolve type .*__torch__\.torch\.classes\.(\w+)\.(\w+)")


def programs_of(path: str) -> dict[str, ExportedProgram]:
    """Return all programs of a file, by name; what else is in it, such as compiled code, is loaded too.

    Args:
        path: The file, which the user trusts: what it says is run.
    """
    programs: dict[str, ExportedProgram] = load_pt2(path).exported_programs
    return programs


def reading_fault(path: str, raised: Exception) -> Exception:
    """Read a file again, and return the cause of the error that `torch.export.load` raised for it.

    Args:
        path: The file, which the user trusts: what it says is run again.
    """
    if not str(raised).startswith("We ran into an error when deserializing"):
        return raised
    try:
        load_pt2(path)
    except Exception as error:
        return error
    return raised


def unregistered_class(fault: Exception) -> str | None:
    """Return `acme::Table`, if the file has an object of that C++ class and its library is not loaded."""
    found = _UNKNOWN_CLASS.search(str(fault))
    return f"{found[1]}::{found[2]}" if found else None
