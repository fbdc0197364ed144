"""Programs in files: written so that anybody can read them, read so that anybody may have written them.

Importing this room does not import torch: what reads containers needs none. Names are fetched on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .binding import bind
    from .description import ArchiveDescription, StoredConstant, describe
    from .error import ArchiveError, ArchiveWriteError
    from .loading import LoadedArchive, load, load_archive
    from .manifest import Manifest
    from .saving import save

__all__ = [
    "ArchiveDescription",
    "ArchiveError",
    "ArchiveWriteError",
    "LoadedArchive",
    "Manifest",
    "StoredConstant",
    "bind",
    "describe",
    "load",
    "load_archive",
    "save",
]

_HOMES = {
    "ArchiveDescription": "description",
    "ArchiveError": "error",
    "ArchiveWriteError": "error",
    "LoadedArchive": "loading",
    "Manifest": "manifest",
    "StoredConstant": "description",
    "bind": "binding",
    "describe": "description",
    "load": "loading",
    "load_archive": "loading",
    "save": "saving",
}


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
