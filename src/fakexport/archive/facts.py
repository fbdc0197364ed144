"""What the caller knows of a program and the program does not tell: for its manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from fakexport.capture import UnboundConstant
from fakexport.program.retargeting.device_move import DeviceMove

from .manifest import Manifest

__all__ = ["Facts"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The arguments of `save` that are for the manifest; it documents them."""

    source: str = ""
    topology: str | None = None
    profiles: Sequence[str] | None = None
    device_map: Mapping[str, str] | None = None
    dtype: str | None = None
    dynamic_shapes: str | None = None
    skipped_checks: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    unbound: Sequence[UnboundConstant] = ()

    @classmethod
    def of(cls, manifest: Manifest) -> Facts:
        """The facts of a program that comes out of an archive, to write it into another one."""
        return cls(
            source=manifest.source,
            topology=manifest.topology,
            profiles=manifest.profiles,
            device_map=manifest.device_map,
            dtype=manifest.dtype,
            dynamic_shapes=manifest.dynamic_shapes,
            skipped_checks=manifest.skipped_checks,
            versions=manifest.versions,
            unbound=[UnboundConstant(**asdict(known)) for known in manifest.unbound_constants],
        )

    def bound(self, devices: Sequence[str], device_map: str | Mapping[str, str] | None) -> Facts:
        """The facts of what `bind` makes of a program with a device map; they stay where nothing moves.

        Args:
            devices: The program's, as `devices_of_program` has them.
            device_map: As for `bind`, and of no other devices than these.
        """
        move = DeviceMove.parse(device_map, tuple(devices))
        return self.elsewhere(str(move.of(device)) for device in devices) if move.targets else self

    def elsewhere(self, devices: Iterable[str], topology: str | None = None) -> Facts:
        """The facts of the same program on other devices: the profiles are others, and the old map is void.

        Args:
            devices: Where it has anything now.
            topology: For which it was retargeted. Default: devices of this machine, of which only the CPU
                is known by a name.
        """
        if topology is None and set(devices) == {"cpu"}:
            topology = "cpu"
        return replace(self, topology=topology, profiles=None, device_map=None)
