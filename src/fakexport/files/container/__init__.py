"""The zip container: a reader for untrusted files, and an atomic writer. Does not import torch."""

from .central_directory import read_entries
from .contents import UNTRUSTED, fault_of_name, is_object_record, is_sample_inputs
from .error import ArchiveError, faults_named
from .framing import STORED
from .limits import MIB, Limits
from .reader import Container, read_container
from .writer import Content, Digest, FileSlice, Streamed, content_pieces, write_container
