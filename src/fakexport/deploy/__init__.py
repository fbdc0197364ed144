"""From a bound program to something that runs, can be read, or is held against its model."""

from .artifact import Artifact, CompiledFile, CompileFailure, DeployError
from .inputs import read_inputs
from .opening import artifact_kind, open_artifact
from .outputs import write_outputs
from .python_file import write_source
from .run import run
from .side_by_side import compare_source
from .signature import Signature, UnsuitableInputs

__all__ = [
    "Artifact",
    "CompileFailure",
    "CompiledFile",
    "DeployError",
    "Signature",
    "UnsuitableInputs",
    "artifact_kind",
    "compare_source",
    "open_artifact",
    "read_inputs",
    "run",
    "write_outputs",
    "write_source",
]
