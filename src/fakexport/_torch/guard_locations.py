"""Where in the user's code a condition on sizes came from. Seen on torch 2.11 to 2.13.

Source: `torch/fx/experimental/symbolic_shapes.py:ShapeGuard`, `torch/_guards.py:SLoc`,
`torch/_export/non_strict_utils.py:make_fake_inputs`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

__all__ = ["guard_locations"]

_PLACE = re.compile(r"(?P<path>[^\s()][^()\n]*?):(?P<line>\d+)(?: in (?P<function>[^\s)]+))?")


def guard_locations(error: BaseException) -> list[tuple[str, list[tuple[str, int, str | None]]]]:
    """The guards of the shape environment that an export used before it raised.

    Export makes a fake mode of its own and keeps it in local variables, so the way to it after a failure
    is through the frames of the traceback.

    Returns:
        `(expression, [(path, line, function), ...])` per guard, in the order they arose; places outermost
        first. Empty where nothing was symbolic.
    """
    seen: dict[int, ShapeEnv] = {}
    for environment in _environments(error):
        seen.setdefault(id(environment), environment)
    return [(str(guard.expr), _places(guard.sloc)) for env in seen.values() for guard in env.guards]


def _environments(error: BaseException) -> Iterator[ShapeEnv]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, FakeTensorMode):
                value = value.shape_env
            if isinstance(value, ShapeEnv):
                yield value


def _places(sloc: Any) -> list[tuple[str, int, str | None]]:
    """Torch keeps a frame, or a text made of one; the user's place is a text."""
    found: list[tuple[str, int, str | None]] = []
    for place in (sloc.framework_loc, sloc.maybe_user_loc):
        if isinstance(place, traceback.FrameSummary):
            found.append((place.filename, place.lineno or 1, place.name))
        elif place:
            found += [(m["path"], int(m["line"]), m["function"]) for m in _PLACE.finditer(str(place))]
    return found
