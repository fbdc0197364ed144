"""`fakexport.lock`: record exported programs in a repository, and detect changes. Does not import torch."""

from .comparison import locked_report
from .lock_entry import Key, LockEntry, entries_of
from .lock_file import LockFileError, read_lock, write_lock
