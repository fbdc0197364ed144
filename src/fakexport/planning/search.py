"""Find the largest size that fits, and the smallest sufficient number of devices."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from fakexport.emulation.devices import DeviceProfile, Topology, load_profiles
from fakexport.error import InvalidValue
from fakexport.models.parallel import DegreeMismatch
from fakexport.planning.memory import SizeRequest
from fakexport.planning.point import PlannedProgram
from fakexport.planning.source_programs import SourcePrograms
from fakexport.report import Greatest, Machine, PlannedPoint

_NO_BOUND = 2**40
# A prompt of more tokens may be too long to run: the number of bytes of its mask overflows.
_LONGEST_PROMPT = 2**20


def greatest(program: PlannedProgram, role: str, request: SizeRequest) -> Greatest:
    """Return the largest batch or context that fits on every device."""
    sizes = program.sizes
    if not sizes.is_dynamic(role):
        raise InvalidValue(
            f"--max {role}: the {role} size of this program is fixed; export the model with --dynamic auto"
        )
    lowest, bound = sizes.least(role), sizes.greatest(role) or _NO_BOUND

    def at(size: int) -> PlannedPoint:
        asked = replace(request, batch=size) if role == "batch" else replace(request, context=size)
        return program.totals_at(asked)

    first = at(lowest)
    if first.fit == "unknown":
        raise InvalidValue(f"--max {role}: the memory size of {program.topology.spec} is not known")
    most = _last(lambda size: at(size).fit in ("fits", "may not fit"), lowest, bound)
    surely = _last(lambda size: at(size).fit == "fits", lowest, bound if most is None else most)
    if most is not None and most == bound:
        return Greatest(role, most, surely, "range", None)
    full = next(d.name for d in at(lowest if most is None else most + 1).devices if d.fit == "does not fit")
    return Greatest(role, most, surely, "memory", full)


def greatest_of_source(programs: SourcePrograms, role: str, request: SizeRequest) -> Greatest:
    """Return the largest size that fits. The size must be dynamic. A batch of 1 needs a separate program.

    The program of a decode step is exact only at its own context. It is therefore exported again for the
    context that was found, until both agree.
    """
    free = request if role == "context" else replace(request, batch=2)
    program = programs.program(free)
    if role == "context" and free.context and not program.sizes.is_dynamic(role):
        # A mask that is exactly as long as the window of every layer has a fixed size.
        program = programs.program(replace(free, context=free.context + 1))
    tried = set[int | None]()
    while (found := greatest(program, role, free)).size is not None and role == "context":
        largest = replace(free, context=min(found.size, _LONGEST_PROMPT))
        exact = programs.program(largest)
        if exact is program or exact.totals_at(largest).devices == program.totals_at(largest).devices:
            break
        if largest.context in tried:  # Each program finds the other's context.
            raise InvalidValue(
                f"--max context: the memory near {found.size:,} tokens depends on the length of the prompt "
                "in an unknown way: plan the contexts of interest with --context"
            )
        tried.add(largest.context)
        program = exact
    if role == "context" or found.size is not None or not programs.is_derived:
        return found
    single = programs.at(replace(request, batch=1))
    if single.fit not in ("fits", "may not fit"):
        return found
    return replace(found, size=1, fits_surely=1 if single.fit == "fits" else None)


def _last(is_good: Callable[[int], bool], lowest: int, bound: int) -> int | None:
    """Return the largest size for which `is_good`, or None. Above a bad size, all sizes must be bad."""
    if not is_good(lowest):
        return None
    good, step = lowest, 1
    while good < bound and is_good(min(good + step, bound)):
        good = min(good + step, bound)
        step *= 2
    if good == bound:
        return bound
    bad = min(good + step, bound)
    return good + bisect_left(range(good + 1, bad), True, key=lambda size: not is_good(size))


COUNTS = (1, 2, 4, 8, 16)
"""Numbers of devices to try."""

PLACEMENT = "balanced"


def smallest_machines(
    programs_on: Callable[[Topology, str | None], SourcePrograms],
    request: SizeRequest,
    *,
    is_parallel: bool = False,
) -> tuple[Machine, ...]:
    """Return, for each CUDA profile, the smallest number of devices on which a model fits.

    For each number of devices, the model is exported once, for the profile with the most memory, and that
    program is evaluated for all profiles. The result ignores that different GPUs may compute an operator in
    different ways.

    Args:
        programs_on: Function that exports the model for a topology and a device map (None: no map).
        is_parallel: Whether the model is sharded over the devices instead of placed on them by a device map.
            Numbers of devices that it cannot be sharded over are omitted.
    Returns:
        One entry per profile: first the profiles that fit, sorted by the total memory of their devices.
    """
    profiles = [p for p in load_profiles().values() if p.device_type == "cuda" and p.memory_bytes]
    largest = max(profiles, key=lambda profile: profile.memory_bytes or 0)
    found: dict[str, Machine] = {}
    for count in COUNTS:
        left = [profile for profile in profiles if profile.name not in found]
        if not left:
            break
        devices = Topology.parse(_several(count, largest))
        device_map = None if count == 1 or is_parallel else PLACEMENT
        try:
            programs = programs_on(devices, device_map)
            sizes = programs.completed(request)
            planned = programs.program_at(sizes)
        except DegreeMismatch:
            continue
        for profile, point in _on_each(planned, left, count, sizes):
            if point.fit == "fits":
                headroom = min((d.headroom for d in point.devices if d.headroom), key=lambda h: h.lower)
                placed = f"tp={count}" if is_parallel and count > 1 else device_map
                found[profile.name] = Machine(profile.name, count, placed, headroom)
    total = {profile.name: profile.memory_bytes or 0 for profile in profiles}
    fitting = sorted(found.values(), key=lambda m: ((m.count or 0) * total[m.profile], m.profile))
    others = sorted(profile.name for profile in profiles if profile.name not in found)
    return (*fitting, *(Machine(name, None, None, None) for name in others))


def _on_each(
    planned: PlannedProgram, profiles: Sequence[DeviceProfile], count: int, request: SizeRequest
) -> Iterator[tuple[DeviceProfile, PlannedPoint]]:
    for profile in profiles:
        topology = Topology.parse(_several(count, profile))
        yield profile, replace(planned, topology=topology).totals_at(request)


def _several(count: int, profile: DeviceProfile) -> str:
    return profile.name if count == 1 else f"{count}x{profile.name}"
