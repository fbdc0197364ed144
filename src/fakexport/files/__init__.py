"""Files from an untrusted author: opened once, without waiting, read within limits; and atomic writes."""

from .exclusive import exclusive, lock_or_refuse
from .inputs import inputs_protected, inputs_read, remember_inputs
from .new_file import FileWriteError, new_file, new_folder
from .private_folder import PrivateFolderError, fault_of_owner, make_private_folder, private_folder
from .regular_file import RegularFile, kind_of, open_below, open_regular, read_file
