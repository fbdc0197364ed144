"""Read the parts of a program's document that describe the whole program. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fakexport.exporting.interface import SymbolRange
from fakexport.files.documents import DocumentError, field, integer, items, mapping, optional

MOST_GUARDS = 20_000
MOST_GUARD_CHARACTERS = 4_000_000
_SCHEMA = 8
"""The major version of torch's schema that this module was written for."""


def check_version(value: Any) -> None:
    """Reject a schema version that this torch version cannot read."""
    owner = mapping(value)
    major, minor = field(owner, "major", integer), field(owner, "minor", integer)
    if major == _SCHEMA:
        return
    import torch

    from fakexport._torch.tracing.program_schema import SCHEMA_VERSION

    if major != SCHEMA_VERSION[0]:
        reads = ".".join(map(str, SCHEMA_VERSION))
        raise DocumentError(
            f"the program has schema version {major}.{minor}; torch {torch.__version__} reads {reads}"
        )


def read_range(value: Any) -> SymbolRange:
    """Return the range of a symbol."""
    owner = mapping(value)
    lower, upper = (field(owner, name, lambda v: optional(v, integer)) for name in ("min_val", "max_val"))
    if lower is not None and upper is not None and lower > upper:
        raise DocumentError(f"the range from {lower} to {upper} is empty")
    return SymbolRange(lower, upper)


def read_guards(value: Any, read: Callable[[Any], str]) -> list[str]:
    """Read the guards on the inputs with `read`. Their total length is limited, because torch parses them."""
    guards = items(value, read, MOST_GUARDS)
    if sum(map(len, guards)) > MOST_GUARD_CHARACTERS:
        raise DocumentError(f"the guards have more than {MOST_GUARD_CHARACTERS:,} characters in total")
    return guards
