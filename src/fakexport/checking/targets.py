"""What the caller says of the targets: read, checked, and named for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fakexport.devices import Topology
from fakexport.error import InvalidValue
from fakexport.fake import DeviceMap
from fakexport.report import TargetSpec
from fakexport.sources import Source, dtype_text, parse_dtype

DeviceMapText = str | Mapping[str, str]
OneTarget = str | Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """One row of the verdict table.

    Args:
        spec: As the report shows it.
        topology: The devices.
        device_map: Where the modules live; None where the caller does not say.
        dtype: Floating dtype of the construction; None for torch's own.
    """

    spec: TargetSpec
    topology: Topology
    device_map: DeviceMap | None
    dtype: torch.dtype | None


def parse_targets(
    targets: OneTarget | Sequence[OneTarget],
    device_map: DeviceMapText | None,
    dtype: str | torch.dtype | None,
    source: Source | None = None,
) -> list[Target]:
    """Return the targets of a check, each with a name of its own.

    Args:
        targets: One or more topologies, or mappings with `topology`, `device_map` and `dtype`.
        device_map, dtype: Device map and dtype of those that have none of their own.
        source: The model, which may have a dtype and assumptions; None before it is read.
    Raises:
        TypeError, ValueError: one line about what is wrong with them.
    """
    if isinstance(targets, (str, Mapping)):
        targets = [targets]
    if not targets:
        raise InvalidValue("no target given: name at least one, such as 'H100'")
    parsed = [parse_target(target, device_map, dtype, source) for target in targets]
    names: dict[str, int] = {}
    for index, target in enumerate(parsed):
        names[target.spec.name] = names.get(target.spec.name, 0) + 1
        if names[target.spec.name] > 1:  # The same row twice: number it, so that findings can name it.
            name = f"{target.spec.name} #{names[target.spec.name]}"
            parsed[index] = replace(target, spec=replace(target.spec, name=name))
    return parsed


def parse_target(
    target: OneTarget,
    device_map: DeviceMapText | None,
    dtype: str | torch.dtype | None,
    source: Source | None,
) -> Target:
    """Return one target; the arguments and errors are those of `parse_targets`."""
    fields = {"topology": target} if isinstance(target, str) else dict(target)
    unknown = fields.keys() - {"topology", "device_map", "dtype"}
    if unknown or "topology" not in fields:
        raise InvalidValue(f"a target has topology, device_map and dtype; got {', '.join(sorted(fields))}")
    topology = Topology.parse(fields["topology"])
    own_map = fields.get("device_map")
    asked = fields.get("dtype", dtype)
    known = None if source is None else source.dtype
    chosen = known if asked is None else parse_dtype(asked)
    placed = own_map if own_map is not None else device_map
    parsed = None if placed is None else _device_map(placed)
    spec = TargetSpec(
        name=fields["topology"] if own_map is None else f"{fields['topology']} ({_map_text(own_map)})",
        topology=topology.canonical,
        device_map=None if placed is None else _map_text(placed),
        dtype=None if chosen is None else dtype_text(chosen),
        assumptions=topology.assumptions + (() if source is None else source.assumptions),
    )
    return Target(spec, topology, parsed, chosen)


def _device_map(spec: DeviceMapText) -> DeviceMap:
    try:
        return DeviceMap.parse(spec)
    except OSError as error:
        raise InvalidValue(f"device map {spec}: {error.strerror or error}") from error


def _map_text(device_map: DeviceMapText) -> str:
    if isinstance(device_map, str):
        return device_map
    return ",".join(f"{path}={device}" for path, device in device_map.items())
