"""The zip container: a reader for untrusted files and an atomic writer. Free of torch."""

from .central_directory import read_entries
from .contents import UNTRUSTED, is_object_record, is_sample_inputs
from .error import ArchiveError, faults_named
from .framing import STORED
from .limits import MIB, Limits
from .reader import Container, read_container
from .record_name import fault_of_name
from .writer import Content, Digest, FileSlice, Streamed, write_container
