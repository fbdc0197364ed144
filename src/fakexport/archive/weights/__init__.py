"""Read checkpoint headers, check whether they match a model, and bind checkpoints to programs.

Names are imported on first use, because `stored_entries` needs no torch.
"""

from typing import TYPE_CHECKING

from fakexport._lazy_face import lazy_names

if TYPE_CHECKING:
    from .adapters import as_needed
    from .binding import (
        BindError,
        bound_program,
        check_dtype,
        fitting_weights,
        move_to_here,
    )
    from .bound_weights import are_equal, is_finite
    from .buffer_check import verify_buffers
    from .buffer_values import loaded_model
    from .buffers_report import BuffersReport, UncheckedBuffer, WrongBuffer
    from .checkpoint import Checkpoint, Entry
    from .checkpoint_files import CheckpointError, first_file
    from .checkpoint_headers import stored_entries
    from .expectation import (
        ExpectedWeights,
        ModelSource,
        Weight,
        expected_of_program,
    )
    from .hub_recipes import computed_of, model_of, recipes_of
    from .opening import open_checkpoint, with_values
    from .safetensors_file import (
        DTYPES,
        MappedFile,
        Windows,
        read_header,
        read_header_of,
    )
    from .safetensors_header import StoredEntry
    from .verification import (
        CheckpointSource,
        Verified,
        verified,
        verify_model,
    )
    from .weights_report import (
        WeightFinding,
        WeightsReport,
        WeightsWarning,
        caller_level,
        fold_names,
        warn_of,
        warn_of_hooks,
        warn_of_settings,
    )

if not TYPE_CHECKING:  # A type checker would accept any misspelled name.
    __getattr__ = lazy_names(
        __name__,
        {
            "adapters": "as_needed",
            "binding": "BindError bound_program check_dtype fitting_weights move_to_here",
            "bound_weights": "are_equal is_finite",
            "buffer_check": "verify_buffers",
            "buffer_values": "loaded_model",
            "buffers_report": "BuffersReport UncheckedBuffer WrongBuffer",
            "checkpoint": "Checkpoint Entry",
            "checkpoint_files": "CheckpointError first_file",
            "checkpoint_headers": "stored_entries",
            "expectation": "ExpectedWeights ModelSource Weight expected_of_program",
            "hub_recipes": "computed_of model_of recipes_of",
            "opening": "open_checkpoint with_values",
            "safetensors_file": "DTYPES MappedFile Windows read_header read_header_of",
            "safetensors_header": "StoredEntry",
            "verification": "CheckpointSource Verified verified verify_model",
            "weights_report": """
                WeightFinding WeightsReport WeightsWarning caller_level fold_names warn_of warn_of_hooks
                warn_of_settings
            """,
        },
    )
