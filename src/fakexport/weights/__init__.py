"""Checkpoints: their headers, whether they fit a model, and binding them to a program."""

from fakexport.weights.binding import BindError
from fakexport.weights.checkpoint import Checkpoint, CheckpointError, Entry
from fakexport.weights.hub_recipes import recipes_of
from fakexport.weights.mapped_file import MappedFile
from fakexport.weights.opening import first_file, open_checkpoint
from fakexport.weights.safetensors_header import read_header, read_header_of
from fakexport.weights.verification import CheckpointSource, verify_model
from fakexport.weights.weights_report import WeightFinding, WeightsReport
from fakexport.weights.weights_warning import WeightsWarning, caller_level, warn_of
from fakexport.weights.windows import Windows

__all__ = [
    "BindError",
    "Checkpoint",
    "CheckpointError",
    "CheckpointSource",
    "Entry",
    "MappedFile",
    "WeightFinding",
    "WeightsReport",
    "WeightsWarning",
    "Windows",
    "caller_level",
    "first_file",
    "open_checkpoint",
    "read_header",
    "read_header_of",
    "recipes_of",
    "verify_model",
    "warn_of",
]
