"""Read and write `.pt2` archives; every file is treated as untrusted input.

Importing this package does not import torch, because describing an archive does not need it. Its names are
imported on first use.
"""

from typing import TYPE_CHECKING

from fakexport._lazy_face import lazy_names

if TYPE_CHECKING:
    from .archive_difference import ArchiveDifference, FactDifference, WeightDifference, diff_archives
    from .binding import bind
    from .bundle import Bundle
    from .codec.operator_lookup import refuse_unregistered
    from .description import ArchiveDescription, MethodDescription, describe
    from .loading import load, load_bundle
    from .manifest import Manifest, MethodManifest, TensorEntry
    from .manifest_json import method_from_json, method_to_json
    from .merging import merge
    from .methods import method_manifests
    from .own_symbols import with_own_symbols
    from .payload import weights_payload
    from .saved_object import refuse_unregistered_classes
    from .saving import WeightsDroppedWarning, save, save_bundle, try_to_save
    from .shared_names import name_in_checkpoint
    from .verification import verify_archived_weights, verify_weights
    from .weights_by_name import verified_by_name

if not TYPE_CHECKING:  # A type checker would accept any misspelled name.
    __getattr__ = lazy_names(
        __name__,
        {
            "archive_difference": "ArchiveDifference FactDifference WeightDifference diff_archives",
            "binding": "bind",
            "bundle": "Bundle",
            "codec.operator_lookup": "refuse_unregistered",
            "description": "ArchiveDescription MethodDescription describe",
            "own_symbols": "with_own_symbols",
            "loading": "load load_bundle",
            "manifest": "Manifest MethodManifest TensorEntry",
            "manifest_json": "method_from_json method_to_json",
            "merging": "merge",
            "methods": "method_manifests",
            "payload": "weights_payload",
            "saved_object": "refuse_unregistered_classes",
            "saving": "WeightsDroppedWarning save save_bundle try_to_save",
            "shared_names": "name_in_checkpoint",
            "verification": "verify_archived_weights verify_weights",
            "weights_by_name": "verified_by_name",
        },
    )
