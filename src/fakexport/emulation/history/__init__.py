"""Record the operators that create each fake tensor, and replay the record to compute the tensor's value.

This package handles tensors only. The package `fake` builds and places modules, and uses this package.
"""

from .example_values import example_recording
from .provenance import Provenance
from .recording import Recording, recording
from .records import Operation, Output, TensorRecord, bits
from .references import is_of_other_library, record_of
from .replay import DataReadError, replay, why_unreplayable
from .values import (
    constant_value,
    edit_of,
    hand_on_value,
    ignores_default_device,
    is_filled,
    is_of_real_data,
    is_of_zeros,
    known_value,
    note_edit,
    remember_filled,
    set_constant_value,
    withhold_value,
)
