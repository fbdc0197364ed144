"""Safe reading of untrusted files, and atomic writes.

Untrusted files are opened only once, without blocking, and are read within limits.
"""

from .escaping import escaped, escaped_lines
from .new_file import FileWriteError, exclusive, lock_or_refuse, new_file, new_folder
from .plugins import PluginError, load_plugin, plugin_fault, plugin_file, plugins
from .private_folder import PrivateFolderError, fault_of_owner, make_private_folder, private_folder
from .regular_file import (
    RegularFile,
    inputs_protected,
    inputs_read,
    kind_of,
    open_below,
    open_regular,
    read_file,
    remember_inputs,
)
