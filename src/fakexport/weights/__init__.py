"""Checkpoints: their headers, whether they fit a model, and binding them to a program."""

from fakexport.weights.adapters import as_needed
from fakexport.weights.binding import BindError, bound_program, check_dtype, fitting_weights, move_to_here
from fakexport.weights.bound_weights import are_equal, is_finite
from fakexport.weights.buffer_check import verify_buffers
from fakexport.weights.buffer_values import loaded_model
from fakexport.weights.buffers_report import BuffersReport, UncheckedBuffer, WrongBuffer
from fakexport.weights.checkpoint import Checkpoint, CheckpointError, Entry
from fakexport.weights.expectation import ExpectedWeights, ModelSource, Weight, expected_of_program
from fakexport.weights.hub_recipes import model_of, recipes_of
from fakexport.weights.initial_values import computed_of
from fakexport.weights.mapped_file import MappedFile, Windows
from fakexport.weights.name_folding import fold_names
from fakexport.weights.opening import first_file, open_checkpoint, with_values
from fakexport.weights.safetensors_header import DTYPES, read_header, read_header_of
from fakexport.weights.verification import CheckpointSource, Verified, verified, verify_model
from fakexport.weights.weights_report import WeightFinding, WeightsReport
from fakexport.weights.weights_warning import WeightsWarning, caller_level, warn_of, warn_of_hooks
