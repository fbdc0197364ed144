"""The assumptions that a trace made about the inputs, in a form that can be stored and checked."""

from .contract import (
    Asked,
    always_guards,
    asked_guards,
    equal_size_guard,
    has_identity_guard,
    inference_mode_guard,
    least_size_guard,
    with_device_guards,
)
from .guards_of_program import argument_names_of, conditions_of, leaves_of, linear_size
from .input_sizes import InputSizes, refused_size
