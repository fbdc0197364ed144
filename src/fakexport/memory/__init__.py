"""How much memory a program needs on each device, at any size, read off the program.

`liveness` reads a program once, `sizes_at` evaluates it at sizes, `Sizes.peak` finds the peak of a device.
"""

from fakexport.memory.allocator import allocator_peak
from fakexport.memory.execution import REGIONS
from fakexport.memory.liveness import Liveness, liveness
from fakexport.memory.node_memory import value_key, values_of
from fakexport.memory.overheads import allocator_overhead, overheads
from fakexport.memory.peak import LiveStorage, Sizes, sizes_at
from fakexport.memory.sizes import ChosenSizes, ProgramSizes, SizeRequest, parse_bounds, parse_dims
from fakexport.memory.storage import Kind, Size, Storage

__all__ = [
    "REGIONS",
    "ChosenSizes",
    "Kind",
    "LiveStorage",
    "Liveness",
    "ProgramSizes",
    "Size",
    "SizeRequest",
    "Sizes",
    "Storage",
    "allocator_overhead",
    "allocator_peak",
    "liveness",
    "overheads",
    "parse_bounds",
    "parse_dims",
    "sizes_at",
    "value_key",
    "values_of",
]
