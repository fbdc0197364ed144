"""Read and write `.pt2` archives; every file is treated as untrusted input.

Importing this package does not import torch, which describing an archive does not need. Names are resolved
on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .archive_difference import ArchiveDifference, FactDifference, WeightDifference, diff_archives
    from .binding import bind
    from .bundle import Bundle
    from .codec.operator_lookup import refuse_unregistered
    from .description import ArchiveDescription, MethodDescription, describe
    from .loading import load, load_bundle
    from .manifest import DTYPE_BYTES, Manifest, MethodManifest, TensorEntry
    from .manifest_json import method_from_json, method_to_json
    from .payload import weights_payload
    from .saved_object import refuse_unregistered_classes
    from .saving import WeightsLeftBehind, save, save_bundle
    from .sharing import name_in_checkpoint
    from .verification import is_archive, verify_archived_weights, verify_weights

_ROOMS = {
    "archive_difference": "ArchiveDifference FactDifference WeightDifference diff_archives",
    "binding": "bind",
    "bundle": "Bundle",
    "codec.operator_lookup": "refuse_unregistered",
    "description": "ArchiveDescription MethodDescription describe",
    "loading": "load load_bundle",
    "manifest": "DTYPE_BYTES Manifest MethodManifest TensorEntry",
    "manifest_json": "method_from_json method_to_json",
    "payload": "weights_payload",
    "saved_object": "refuse_unregistered_classes",
    "saving": "WeightsLeftBehind save save_bundle",
    "sharing": "name_in_checkpoint",
    "verification": "is_archive verify_archived_weights verify_weights",
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names.split()}


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
