"""What is known of a program and its graph does not say: written at capture, handed on with each change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fakexport.program.retargeting.device_move import DeviceMove
from fakexport.program.unbound_constant import UnboundConstant

__all__ = ["ProgramFacts"]


@dataclass(frozen=True, kw_only=True)
class ProgramFacts:
    """The facts of one program, for the manifest of its archive.

    Args:
        source: What it was exported from: `hf:config.json`, `model.py:factory`, the name of a factory.
        topology: The devices it was exported for, `8xH100-80GB`.
        profiles: Names of the devices' profiles in order; None: those of the topology.
        device_map: Device by module path.
        dtype: The floating dtype that was asked for.
        dynamic_shapes: The dimensions that may vary, as the user put it.
        skipped_checks: What was assumed and what was not checked, one sentence each.
        versions: Of packages that took part besides fakexport and torch, by name.
        unbound: Why constants have no value.
        left_behind: Real weights that are fakes since the program is on devices that are not here, by name.
    """

    source: str = ""
    topology: str | None = None
    profiles: Sequence[str] | None = None
    device_map: Mapping[str, str] | None = None
    dtype: str | None = None
    dynamic_shapes: str | None = None
    skipped_checks: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    unbound: Sequence[UnboundConstant] = ()
    left_behind: tuple[str, ...] = ()

    def given(self, **facts: Any) -> ProgramFacts:
        """These, but for those that a caller says; None says nothing."""
        said = {name: fact for name, fact in facts.items() if fact is not None}
        if "topology" in said:
            said = {"profiles": None, **said}
        return replace(self, **said)

    def bound(self, devices: Sequence[str], device_map: str | Mapping[str, str] | None) -> ProgramFacts:
        """The facts of what `bind` makes of a program with a device map; they stay where nothing moves.

        Args:
            devices: The program's, as `devices_of_program` has them.
            device_map: As for `bind`, and of no other devices than these.
        """
        move = DeviceMove.parse(device_map, tuple(devices))
        here = self.elsewhere(str(move.of(device)) for device in devices) if move.targets else self
        return replace(here, left_behind=())

    def elsewhere(self, devices: Iterable[str], topology: str | None = None) -> ProgramFacts:
        """The facts of the same program on other devices: the profiles are others, and the old map is void.

        Args:
            devices: Where it has anything now.
            topology: For which it was retargeted. Default: devices of this machine, of which only the CPU
                is known by a name.
        """
        if topology is None and set(devices) == {"cpu"}:
            topology = "cpu"
        return replace(self, topology=topology, profiles=None, device_map=None)
