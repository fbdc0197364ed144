"""How much memory a program or a training step needs on each device.

`liveness` reads a program once, `training_liveness` trains on fakes; `sizes_at` evaluates either at sizes,
`Sizes.peak` finds the peak of a device.
"""

from fakexport.memory.allocator import allocator_peak
from fakexport.memory.execution import REGIONS, KnownSizes, operands
from fakexport.memory.liveness import Liveness, liveness
from fakexport.memory.node_memory import run_on_fakes, value_key, values_of
from fakexport.memory.overheads import allocator_overhead, overheads
from fakexport.memory.peak import LiveStorage, Sizes, sizes_at
from fakexport.memory.size_request import SizeRequest, parse_bounds, parse_dims
from fakexport.memory.sizes import BeyondTable, ChosenSizes, ProgramSizes, is_cache
from fakexport.memory.storage import Kind, Size, Step, Storage
from fakexport.memory.temporaries import temporaries
from fakexport.memory.training import OptimizerName, Untrainable, eager_liveness, training_liveness
from fakexport.memory.training_inputs import TrainingInputs, training_inputs
