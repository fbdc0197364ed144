"""Read checkpoint headers, check whether they match a model, and bind checkpoints to programs."""

from fakexport.archive.weights.adapters import as_needed
from fakexport.archive.weights.binding import (
    BindError,
    bound_program,
    check_dtype,
    fitting_weights,
    move_to_here,
)
from fakexport.archive.weights.bound_weights import are_equal, is_finite
from fakexport.archive.weights.buffer_check import verify_buffers
from fakexport.archive.weights.buffer_values import loaded_model
from fakexport.archive.weights.buffers_report import BuffersReport, UncheckedBuffer, WrongBuffer
from fakexport.archive.weights.checkpoint import Checkpoint, CheckpointError, Entry
from fakexport.archive.weights.expectation import ExpectedWeights, ModelSource, Weight, expected_of_program
from fakexport.archive.weights.hub_recipes import computed_of, model_of, recipes_of
from fakexport.archive.weights.opening import first_file, open_checkpoint, with_values
from fakexport.archive.weights.safetensors_file import (
    DTYPES,
    MappedFile,
    Windows,
    read_header,
    read_header_of,
)
from fakexport.archive.weights.verification import CheckpointSource, Verified, verified, verify_model
from fakexport.archive.weights.weights_report import (
    WeightFinding,
    WeightsReport,
    WeightsWarning,
    caller_level,
    fold_names,
    warn_of,
    warn_of_hooks,
)
