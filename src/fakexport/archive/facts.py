"""What the caller knows of a program and the program does not tell: for its manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from fakexport.capture import UnboundConstant

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
