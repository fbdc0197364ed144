"""How each fake tensor was made: recorded operation by operation, and replayed where a value is needed.

It knows tensors and no modules: building models and placing them is the subject of `fake`, which imports it.
"""

from .example_values import example_recording
from .provenance import Provenance
from .recording import Recording, recording
from .records import Operation, Output, TensorRecord, bits
from .references import record_of
from .replay import UnreplayableRead, replay, why_unreplayable
from .values import (
    edit_of,
    hand_on_value,
    ignores_default_device,
    is_filled,
    is_of_real_data,
    is_of_zeros,
    known_value,
    note_edit,
    remember_filled,
    remember_value,
    value_of,
    withhold_value,
)
