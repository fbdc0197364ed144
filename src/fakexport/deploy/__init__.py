"""Run a bound program, generate tokens with a bundle, or compile a program.

Names are imported on first use, because the command line lists the compiled forms without importing torch.
"""

from typing import TYPE_CHECKING

from fakexport._lazy_face import lazy_names

if TYPE_CHECKING:
    from .artifact import Artifact, CompiledFile, CompileFailure, DeployError
    from .compilation import compile, program_to_compile
    from .composed_program import IN_PYTHON, composed
    from .coverage.answer import runtime_verdict
    from .coverage.runtimes import RUNTIMES, check_runtimes
    from .forms import OPTIONS_OF, Form, check_form
    from .generation import Generated, Generator, Sampling, Tokenizer, generate
    from .loaded_program import LoadedProgram, call_arguments, run, run_timed
    from .opening import artifact_kind, open_program
    from .pipeline import pipelined
    from .ranks import joined, rank_of_archive
    from .signature import InputMismatchError
    from .tensor_files import adapter_inputs, read_inputs, takes_adapter, write_outputs

if not TYPE_CHECKING:  # A type checker would accept any misspelled name.
    __getattr__ = lazy_names(
        __name__,
        {
            "artifact": "Artifact CompiledFile CompileFailure DeployError",
            "compilation": "compile program_to_compile",
            "composed_program": "IN_PYTHON composed",
            "coverage.answer": "runtime_verdict",
            "coverage.runtimes": "RUNTIMES check_runtimes",
            "forms": "OPTIONS_OF Form check_form",
            "generation": "Generated Generator Sampling Tokenizer generate",
            "loaded_program": "LoadedProgram call_arguments run run_timed",
            "opening": "artifact_kind open_program",
            "pipeline": "pipelined",
            "ranks": "joined rank_of_archive",
            "signature": "InputMismatchError",
            "tensor_files": "adapter_inputs read_inputs takes_adapter write_outputs",
        },
    )
