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
    from .description import ArchiveDescription, MethodDescription, StoredConstant, describe
    from .loading import LoadedArchive, load, load_archive, load_bundle
    from .manifest import Manifest, MethodManifest
    from .methods import methods_of
    from .saving import save, save_bundle
    from .verification import is_archive, verify_archived_weights, verify_weights
    from .weights_left import WeightsLeftBehind

__all__ = [
    "ArchiveDescription",
    "ArchiveDifference",
    "Bundle",
    "FactDifference",
    "LoadedArchive",
    "Manifest",
    "MethodDescription",
    "MethodManifest",
    "StoredConstant",
    "WeightDifference",
    "WeightsLeftBehind",
    "bind",
    "describe",
    "diff_archives",
    "is_archive",
    "load",
    "load_archive",
    "load_bundle",
    "methods_of",
    "save",
    "save_bundle",
    "verify_archived_weights",
    "verify_weights",
]

_HOMES = {
    "save_bundle": "saving",
    "methods_of": "methods",
    "load_bundle": "loading",
    "Bundle": "bundle",
    "ArchiveDescription": "description",
    "ArchiveDifference": "archive_difference",
    "FactDifference": "archive_difference",
    "WeightDifference": "archive_difference",
    "diff_archives": "archive_difference",
    "LoadedArchive": "loading",
    "Manifest": "manifest",
    "MethodDescription": "description",
    "MethodManifest": "manifest",
    "StoredConstant": "description",
    "bind": "binding",
    "describe": "description",
    "load": "loading",
    "load_archive": "loading",
    "is_archive": "verification",
    "save": "saving",
    "verify_archived_weights": "verification",
    "verify_weights": "verification",
    "WeightsLeftBehind": "weights_left",
}


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
