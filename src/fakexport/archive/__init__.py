"""Programs in files: written so that anybody can read them, read so that anybody may have written them."""

from .binding import bind
from .error import ArchiveError, ArchiveWriteError
from .loading import LoadedArchive, UnboundProgram, load, load_archive
from .manifest import Manifest
from .saving import save

__all__ = [
    "ArchiveError",
    "ArchiveWriteError",
    "LoadedArchive",
    "Manifest",
    "UnboundProgram",
    "bind",
    "load",
    "load_archive",
    "save",
]
