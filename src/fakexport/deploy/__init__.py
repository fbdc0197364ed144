"""Run a bound program, generate tokens with a bundle, or compile a program."""

from .artifact import Artifact, CompiledFile, CompileFailure, DeployError
from .compilation import compile
from .generation import Generated, Generator, Sampling, Tokenizer, generate
from .loaded_program import LoadedProgram, call_arguments, run, run_timed
from .opening import artifact_kind, open_program
from .ranks import joined, rank_of_archive
from .signature import UnsuitableInputs
from .tensor_files import adapter_inputs, read_inputs, takes_adapter, write_outputs
