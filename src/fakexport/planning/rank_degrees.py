"""Over how many ranks a plan shards a model."""

from __future__ import annotations

from collections.abc import Mapping

from fakexport.devices import Topology
from fakexport.error import InvalidValue
from fakexport.parallel import Degrees, refuse_with_parallel
from fakexport.sources import WorkloadName

# Over all devices of a topology.
_OVER_ALL = ("tp", "tp,ep")


def check_parallel(
    parallel: str,
    device_map: str | Mapping[str, str] | None,
    workload: WorkloadName,
    *,
    is_smallest: bool,
    is_eager: bool,
) -> None:
    """Refuse what does not go with parallelism."""
    if is_eager:
        raise InvalidValue("--parallel does not apply to --eager")
    if workload == "train":
        raise InvalidValue("--parallel does not apply to --workload train")
    if parallel not in _OVER_ALL:
        Degrees.parse(parallel)
        if is_smallest:
            raise InvalidValue(f"--smallest chooses the degree: write --parallel tp, not {parallel}")
    refuse_with_parallel(Degrees(2), device_map=device_map)


def degrees_on(topology: Topology, parallel: str | None) -> Degrees | None:
    """Return the degrees on some devices; `tp` is over all of them, and one device holds the whole model."""
    if parallel is None:
        return None
    count = len(topology.accelerators)
    if parallel in _OVER_ALL:
        return Degrees(count, count if "ep" in parallel else 1) if count > 1 else None
    degrees = Degrees.parse(parallel)
    degrees.check_devices(topology)
    return degrees
