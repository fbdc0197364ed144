"""What a program assumes about its symbolic sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.export import ExportedProgram

from fakexport.program.tensor_spec import Spelling


@dataclass(frozen=True)
class SymbolRange:
    """Smallest and greatest value of a symbol; `upper` is None for infinity, `lower` for minus infinity."""

    lower: int | None
    upper: int | None


def symbol_ranges(program: ExportedProgram, spelling: Spelling) -> dict[str, SymbolRange]:
    """Return the program's range constraints by the text of the symbol, sorted."""
    ranges = {
        spelling.expression(symbol): SymbolRange(_finite(bounds.lower), _finite(bounds.upper))
        for symbol, bounds in program.range_constraints.items()
    }
    return dict(sorted(ranges.items()))


def _finite(bound: Any) -> int | None:
    """Return torch's and sympy's infinities are numbers too, but not integers."""
    return int(bound) if isinstance(bound, int) or getattr(bound, "is_Integer", False) else None
