"""Sizes of a slice that are broadcast although it is not known whether they are 1.

`rows[:1]`, of as many rows as data say, has `Min(1, u0)` rows. In `rows + rows[:1]` torch takes a size that
is unknown for another one than 1, so it writes `u0 == Min(1, u0)` into the program, which then refuses more
than one row, where eager mode broadcasts. `torch._check(rows.shape[0] != 0)` changes nothing, since torch
draws no bound from it; `torch._check(rows.shape[0] > 0)` makes the size 1. Seen on torch 2.11 to 2.15.

Source: `torch/_subclasses/fake_impls.py:infer_size`, `torch/_refs/__init__.py:_broadcast_shapes`,
`torch/_prims/__init__.py:_broadcast_in_dim_meta`.
"""

from __future__ import annotations

import sys
from typing import Any

import sympy
import torch
from torch._subclasses import fake_impls
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import Max, Min

from .decided_branches import asking_frame
from .patching import Patches, in_force

UNKNOWN_BROADCAST = "torch.export cannot know whether the size of this slice is 1"

_BROADCASTS = frozenset(
    function.__code__
    for function in (
        fake_impls.infer_size,
        torch._refs._broadcast_shapes,
        torch._prims._broadcast_in_dim_meta,
    )
)


def unknown_broadcasts_refused() -> Patches:
    """Return a context in which such an operator raises a RuntimeError.

    It begins with `UNKNOWN_BROADCAST`.
    """
    stock = in_force(ShapeEnv, "guard_or_defer_runtime_assert")

    def guard_or_defer(environment: ShapeEnv, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            isinstance(orig_expr, sympy.Eq)
            and orig_expr.has(Min, Max)
            and (frame := asking_frame(sys._getframe(1))) is not None
            and frame.f_code in _BROADCASTS
        ):
            few = [each for each in orig_expr.args if _is_one_unless_empty(each)]
            others = [each for each in orig_expr.args if each not in few]
            if few and others and environment._maybe_evaluate_static(orig_expr) is not sympy.true:
                raise RuntimeError(
                    f"{UNKNOWN_BROADCAST}: it is {few[0]}, next to {others[0]}. torch takes it for another "
                    "size than 1, and the program would refuse what eager mode broadcasts"
                )
        return stock(environment, orig_expr, *args, **kwargs)

    return Patches({(ShapeEnv, "guard_or_defer_runtime_assert"): guard_or_defer})


def _is_one_unless_empty(size: Any) -> bool:
    """Return whether an expression, other than a number, is 1 wherever its symbols are large."""
    symbols = sorted(size.free_symbols, key=str)
    return bool(symbols) and all(
        size.xreplace({symbol: sympy.Integer(start + 7 * i) for i, symbol in enumerate(symbols)}) == 1
        for start in (101, 1009)
    )
