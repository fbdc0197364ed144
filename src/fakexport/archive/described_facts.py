"""The manifest of an archive as facts of its program."""

from __future__ import annotations

from dataclasses import asdict

from fakexport.program import ProgramFacts, UnboundConstant

from .manifest import MethodManifest


def described_facts(manifest: MethodManifest) -> ProgramFacts:
    """Return the facts of a program loaded from an archive, to be written into the next one."""
    return ProgramFacts(
        source=manifest.source,
        topology=manifest.topology,
        profiles=manifest.profiles,
        device_map=manifest.device_map,
        dtype=manifest.dtype,
        dynamic_shapes=manifest.dynamic_shapes,
        skipped_checks=manifest.skipped_checks,
        versions=manifest.versions,
        recipes=manifest.recipes,
        prefix=manifest.prefix,
        unbound=tuple(UnboundConstant(**asdict(known)) for known in manifest.unbound_constants),
    )
