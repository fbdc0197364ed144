"""Compute the memory that a program or a training step needs on each device.

`liveness` reads a program once, and `training_liveness` trains on fake tensors. `sizes_at` evaluates either
result at chosen sizes, and `Sizes.peak` finds the peak of a device.
"""

from fakexport.planning.memory.allocator import allocator_peak
from fakexport.planning.memory.execution import AUTOCAST, BRANCH, REGIONS, KnownSizes, operands
from fakexport.planning.memory.input_dims import is_cache
from fakexport.planning.memory.liveness import Liveness, LiveStorage, Sizes, liveness, sizes_at
from fakexport.planning.memory.node_memory import run_on_fakes, value_key, values_of
from fakexport.planning.memory.overheads import allocator_overhead, overheads
from fakexport.planning.memory.size_request import SizeRequest, parse_bounds, parse_dims
from fakexport.planning.memory.sizes import BeyondTable, ChosenSizes, ProgramSizes
from fakexport.planning.memory.storage import Kind, NamedStep, Size, Step, Storage
from fakexport.planning.memory.temporaries import temporaries
from fakexport.planning.memory.training import OptimizerName, Untrainable, eager_liveness, training_liveness
from fakexport.planning.memory.training_inputs import TrainingInputs, training_inputs
