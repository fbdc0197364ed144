"""The largest size that fits, found by evaluation: no program is traced for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fakexport.error import InvalidValue
from fakexport.memory import SizeRequest
from fakexport.planning.point import PlannedProgram
from fakexport.report import Greatest, PlannedPoint

_NO_BOUND = 2**40


def greatest(program: PlannedProgram, role: str, request: SizeRequest) -> Greatest:
    """Return the largest batch or context that fits on every device.

    Raises:
        ValueError: the size does not vary, or no device has a known memory.
    """
    sizes = program.sizes
    if not (sizes.has_batch if role == "batch" else sizes.has_context):
        raise InvalidValue(
            f"--max {role}: the {role} of this program is fixed; export it with --dynamic auto"
        )
    lowest, bound = sizes.least(role), sizes.greatest(role) or _NO_BOUND

    def at(size: int) -> PlannedPoint:
        asked = replace(request, batch=size) if role == "batch" else replace(request, context=size)
        return program.totals_at(asked)

    first = at(lowest)
    if first.fit == "unknown":
        raise InvalidValue(f"--max {role}: the memory of {program.topology.spec} is not known")
    most = _last(lambda size: at(size).fit in ("fits", "may not fit"), lowest, bound)
    surely = _last(lambda size: at(size).fit == "fits", lowest, bound if most is None else most)
    if most is not None and most == bound:
        return Greatest(role, most, surely, "range", None)
    full = next(d.name for d in at(lowest if most is None else most + 1).devices if d.fit == "does not fit")
    return Greatest(role, most, surely, "memory", full)


def _last(is_good: Callable[[int], bool], lowest: int, bound: int) -> int | None:
    """Return a size that is good and whose successor is not, or `bound`; None if the lowest is not."""
    if not is_good(lowest):
        return None
    good, step = lowest, 1
    while good < bound and is_good(min(good + step, bound)):
        good = min(good + step, bound)
        step *= 2
    if good == bound:
        return bound
    bad = min(good + step, bound)
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_good(middle):
            good = middle
        else:
            bad = middle
    return good
