"""What fakexport says of an archive with several programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fakexport.archive.container.writer import Digest
from fakexport.archive.manifest import Manifest, TensorEntry

__all__ = ["BUNDLE_FORMAT", "METHOD_NAME", "MOST_METHODS", "BundleManifest"]

BUNDLE_FORMAT = "fakexport.bundle/1"
MOST_METHODS = 64
METHOD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class BundleManifest:
    """The description of a bundle; the same programs give the same one.

    Args:
        methods: What a `Manifest` says of each program; their `records` are those of the whole archive, and
            `prefixes` has their prefix.
        prefixes: By method, how the names of its weights begin in the checkpoint and in the program.
        shared: Each weight that several methods have, as (method, name) pairs.
        records: A digest of every record but the manifest, sorted by name.
    """

    methods: Mapping[str, Manifest]
    prefixes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    shared: tuple[tuple[tuple[str, str], ...], ...] = ()
    records: tuple[Digest, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.methods) <= MOST_METHODS:
            raise ValueError(f"{len(self.methods)} methods; a bundle has 1 to {MOST_METHODS}")
        if unknown := sorted(self.prefixes.keys() - self.methods.keys()):
            raise ValueError(f"a prefix of {unknown[0]!r}, which is no method")
        for method, prefix in self.prefixes.items():
            self.methods[method].check_prefix(prefix)
        self._check_shared()
        whole = {
            method: replace(manifest, records=self.records, prefix=None)
            for method, manifest in self.methods.items()
        }
        object.__setattr__(self, "methods", whole)

    def _check_shared(self) -> None:
        """Refuses a pair that is in two weights, and a weight of which one method has two."""
        seen: set[tuple[str, str]] = set()
        for weight in self.shared:
            methods = {method for method, _ in weight}
            if len(weight) < 2 or len(methods) < len(weight):
                raise ValueError("a shared weight that is not one of several methods")
            if unknown := sorted(methods - self.methods.keys()):
                raise ValueError(f"a shared weight of {unknown[0]!r}, which is no method")
            if twice := sorted(seen.intersection(weight)):
                raise ValueError(f"`{twice[0][1]}` of {twice[0][0]} is in two shared weights")
            seen.update(weight)

    @property
    def tensors(self) -> list[TensorEntry]:
        """The weights of all methods, in their order; one that several methods have is there once."""
        again = {pair for weight in self.shared for pair in weight[1:]}
        return [
            tensor
            for method, manifest in self.methods.items()
            for tensor in manifest.tensors
            if (method, tensor.name) not in again
        ]
