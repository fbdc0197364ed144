"""Programs in files: written so that anybody can read them, read so that anybody may have written them.

Importing this room does not import torch: what reads containers needs none. Names are fetched on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .archive_difference import ArchiveDifference, FactDifference, WeightDifference, diff_archives
    from .binding import bind
    from .bundle import Bundle
    from .bundle_loading import LoadedBundle, load_bundle, load_bundle_archive
    from .bundle_manifest import BundleManifest
    from .bundle_saving import save_bundle
    from .description import (
        ArchiveDescription,
        BundleDescription,
        StoredConstant,
        describe,
        describe_bundle,
    )
    from .error import ArchiveError
    from .loading import LoadedArchive, load, load_archive
    from .manifest import Manifest
    from .methods import methods_of
    from .saving import save
    from .verification import is_archive, verify_archived_weights, verify_weights
    from .weights_left import WeightsLeftBehind

__all__ = [
    "ArchiveDescription",
    "ArchiveDifference",
    "ArchiveError",
    "Bundle",
    "BundleDescription",
    "BundleManifest",
    "FactDifference",
    "LoadedArchive",
    "LoadedBundle",
    "Manifest",
    "StoredConstant",
    "WeightDifference",
    "WeightsLeftBehind",
    "bind",
    "describe",
    "describe_bundle",
    "diff_archives",
    "is_archive",
    "load",
    "load_archive",
    "load_bundle",
    "load_bundle_archive",
    "methods_of",
    "save",
    "save_bundle",
    "verify_archived_weights",
    "verify_weights",
]

_HOMES = {
    "save_bundle": "bundle_saving",
    "methods_of": "methods",
    "load_bundle_archive": "bundle_loading",
    "load_bundle": "bundle_loading",
    "describe_bundle": "description",
    "LoadedBundle": "bundle_loading",
    "BundleManifest": "bundle_manifest",
    "BundleDescription": "description",
    "Bundle": "bundle",
    "ArchiveDescription": "description",
    "ArchiveDifference": "archive_difference",
    "FactDifference": "archive_difference",
    "WeightDifference": "archive_difference",
    "diff_archives": "archive_difference",
    "ArchiveError": "error",
    "LoadedArchive": "loading",
    "Manifest": "manifest",
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
