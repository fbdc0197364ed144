"""Run a bound program, generate tokens with a bundle, or compile a program."""

from .adapter_inputs import adapter_inputs, takes_adapter
from .artifact import Artifact, CompiledFile, CompileFailure, DeployError
from .compilation import compile
from .generation import Generated, Generator, Sampling, Tokenizer, generate
from .loaded_program import LoadedProgram, call_arguments, run
from .opening import artifact_kind, open_program
from .ranks import joined, rank_of_archive
from .signature import UnsuitableInputs
from .tensor_files import read_inputs, write_outputs
from .timing import run_timed
