"""`fakexport.lock`: what each model was exported to, kept in a repository and compared. Free of torch."""

from .comparison import locked_report
from .lock_entry import Key, LockEntry, entries_of
from .lock_file import LockFileError, read_lock, write_lock
