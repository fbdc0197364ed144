"""Plan a program that is cut into pipeline stages. Each stage has its own devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from torch.export import ExportedProgram

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.emulation.devices import Topology, emulate
from fakexport.models.parallel import Degrees
from fakexport.planning.memory import SizeRequest, liveness
from fakexport.planning.point import PlannedProgram, multiplying
from fakexport.planning.stages import split_traced
from fakexport.report import PlannedPoint, PlannedStep


@dataclass(frozen=True)
class PlannedStages(PlannedProgram):
    """A program in stages. It has the sizes of the whole program. Each stage is a row of the plan."""

    stages: tuple[PlannedProgram, ...] = ()

    @classmethod
    def cut(cls, program: ExportedProgram, topology: Topology, degrees: Degrees) -> PlannedStages:
        """Cut a program into the stages of `--parallel`, and read the storages of each.

        Raises:
            StageError: as for `split`.
        """
        whole = PlannedProgram.of(program, topology)
        with torch_logs_silenced(), emulate(topology):
            parts = split_traced(program, degrees.stages, at=degrees.starts).values()
            lives = [(part, liveness(part, topology=topology)) for part in parts]
        stages = (
            PlannedProgram(topology, whole.sizes, live, multiplying(live), part) for part, live in lives
        )
        return cls(**{each.name: getattr(whole, each.name) for each in fields(whole)}, stages=tuple(stages))

    def at(self, request: SizeRequest) -> PlannedPoint:
        return self._merged([stage.at(request) for stage in self.stages])

    def totals_at(self, request: SizeRequest) -> PlannedPoint:
        return self._merged([stage.totals_at(request) for stage in self.stages])

    def timeline(self, request: SizeRequest) -> Iterator[PlannedStep]:
        for number, stage in enumerate(self.stages):
            yield from (replace(step, device=_name(number, step.device)) for step in stage.timeline(request))

    @staticmethod
    def _merged(points: list[PlannedPoint]) -> PlannedPoint:
        """Return one point with the devices of all stages, named `stage 0`."""
        devices = [
            replace(device, name=_name(number, device.name))
            for number, point in enumerate(points)
            for device in point.devices
        ]
        first, costs = points[0], points[0].costs
        if costs is not None:
            found = [
                replace(device, name=_name(number, device.name))
                for number, point in enumerate(points)
                for device in (() if point.costs is None else point.costs.devices)
            ]
            costs = replace(costs, devices=tuple(found))
        fullest = max(points, key=lambda point: max(device.tensor_bytes for device in point.devices))
        seconds = [None if point.costs is None else point.costs.least_seconds for point in points]
        known = () if None in seconds else tuple(each or 0.0 for each in seconds)
        return replace(first, devices=tuple(devices), growth=fullest.growth, costs=costs, stage_seconds=known)


def _name(number: int, device: str) -> str:
    return f"stage {number}" if device.endswith(":0") or ":" not in device else f"stage {number}, {device}"
