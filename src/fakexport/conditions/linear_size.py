"""Sizes that are linear in one symbol, as torch's derived dimensions are."""

from __future__ import annotations

from typing import Any


def linear_size(expression: Any) -> tuple[str, int, int] | None:
    """Return the symbol, factor and summand of a size such as `2*s17 + 1`; None for anything else."""
    symbols = list(expression.free_symbols)
    if len(symbols) != 1:
        return None
    times, plus = expression.diff(symbols[0]), expression.subs(symbols[0], 0)
    if times.is_Integer and plus.is_Integer and times > 0:
        return symbols[0].name, int(times), int(plus)
    return None
