"""Parse and name the targets of a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fakexport.emulation.devices import Topology
from fakexport.emulation.fake import DeviceMap
from fakexport.error import InvalidValue
from fakexport.exporting.capture import ModelRequest
from fakexport.models.parallel import refuse_with_parallel
from fakexport.models.sources import Source, dtype_text, parse_dtype
from fakexport.report import TargetSpec

DeviceMapText = str | Mapping[str, str]
OneTarget = str | Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """One row of the verdict table: the target as the report shows it, and its parsed parts.

    Args:
        device_map: The placement of the modules; None if the user chose none.
        dtype: Default floating point dtype during construction; None for torch's default.
    """

    spec: TargetSpec
    topology: Topology
    device_map: DeviceMap | None
    dtype: torch.dtype | None

    def of_source(self, source: Source) -> Target:
        """Return the target with the dtype and the assumptions of a source."""
        dtype = self.dtype or source.dtype
        spec = replace(
            self.spec,
            dtype=None if dtype is None else dtype_text(dtype),
            assumptions=(*self.spec.assumptions, *source.assumptions),
        )
        return replace(self, spec=spec, dtype=dtype)


def targets_of(request: ModelRequest, targets: Sequence[Target]) -> list[Target]:
    """Return the targets of a request, with the dtype and the assumptions of its source.

    Raises:
        ValueError: the model is parallel, and a target has too few devices or a device map.
    """
    for row in targets:
        if request.parallel is not None:
            request.parallel.check_devices(row.topology)
        refuse_with_parallel(request.degrees, device_map=row.device_map)
    return [row.of_source(request.source) for row in targets]


def parse_targets(
    targets: OneTarget | Sequence[OneTarget],
    device_map: DeviceMapText | None,
    dtype: str | torch.dtype | None,
) -> list[Target]:
    """Return the targets of a check, with unique names.

    `targets` are topologies, or mappings with the keys `topology`, `device_map` and `dtype`. The other
    arguments are defaults. An invalid target raises an error of one line.
    """
    if isinstance(targets, (str, Mapping)):
        targets = [targets]
    if not targets:
        raise InvalidValue("no target given: name at least one, such as 'H100'")
    parsed = [_parse(target, device_map, dtype) for target in targets]
    names: dict[str, int] = {}
    for index, target in enumerate(parsed):
        names[target.spec.name] = names.get(target.spec.name, 0) + 1
        if names[target.spec.name] > 1:  # The same target twice: number it, so that findings can refer to it.
            name = f"{target.spec.name} #{names[target.spec.name]}"
            parsed[index] = replace(target, spec=replace(target.spec, name=name))
    return parsed


def _parse(target: OneTarget, device_map: DeviceMapText | None, dtype: str | torch.dtype | None) -> Target:
    fields = {"topology": target} if isinstance(target, str) else dict(target)
    unknown = fields.keys() - {"topology", "device_map", "dtype"}
    if unknown or "topology" not in fields:
        raise InvalidValue(
            "a target needs the key topology, and can have device_map and dtype; got "
            f"{', '.join(sorted(fields))}"
        )
    topology = Topology.parse(fields["topology"])
    own_map = fields.get("device_map")
    asked = fields.get("dtype", dtype)
    chosen = None if asked is None else parse_dtype(asked)
    placed = own_map if own_map is not None else device_map
    parsed = None if placed is None else DeviceMap.parse(placed)
    spec = TargetSpec(
        name=fields["topology"] if own_map is None else f"{fields['topology']} ({_map_text(own_map)})",
        topology=topology.canonical,
        device_map=None if placed is None else _map_text(placed),
        dtype=None if chosen is None else dtype_text(chosen),
        assumptions=topology.assumptions,
    )
    return Target(spec, topology, parsed, chosen)


def _map_text(device_map: DeviceMapText) -> str:
    if isinstance(device_map, str):
        return device_map
    return ",".join(f"{path}={device}" for path, device in device_map.items())
