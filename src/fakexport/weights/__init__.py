"""Checkpoints: their headers, whether they fit a model, and binding them to a program."""

from fakexport.weights.binding import BindError, WeightsWarning, bind
from fakexport.weights.checkpoint import Checkpoint, CheckpointError, Entry
from fakexport.weights.expectation import ModelNotBuilt, dtype_named
from fakexport.weights.hub_recipes import recipes_of, remember_recipes
from fakexport.weights.opening import open_checkpoint
from fakexport.weights.verification import verify_weights
from fakexport.weights.weights_report import WeightFinding, WeightsReport

__all__ = [
    "BindError",
    "Checkpoint",
    "CheckpointError",
    "Entry",
    "ModelNotBuilt",
    "WeightFinding",
    "WeightsReport",
    "WeightsWarning",
    "bind",
    "dtype_named",
    "open_checkpoint",
    "recipes_of",
    "remember_recipes",
    "verify_weights",
]
