"""Run a bound program, or compile it."""

from .artifact import Artifact, CompiledFile, CompileFailure, DeployError
from .compilation import compile
from .inputs import read_inputs
from .loaded_program import LoadedProgram, call_arguments, run
from .opening import artifact_kind, open_program
from .outputs import write_outputs
from .signature import UnsuitableInputs
from .timing import run_timed

__all__ = [
    "Artifact",
    "CompileFailure",
    "CompiledFile",
    "DeployError",
    "LoadedProgram",
    "UnsuitableInputs",
    "artifact_kind",
    "call_arguments",
    "compile",
    "open_program",
    "read_inputs",
    "run",
    "run_timed",
    "write_outputs",
]
