"""Programs in files: written so that anybody can read them, read so that anybody may have written them."""

from .archive_error import ArchiveError
from .collection_pause import collection_paused
from .program_decoder import program_from_json
from .program_encoder import program_to_json

__all__ = ["ArchiveError", "collection_paused", "program_from_json", "program_to_json"]
