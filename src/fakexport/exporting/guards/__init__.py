"""The assumptions that a trace made about the inputs, in a form that can be stored and checked."""

from .condition import Condition, conditions_from_json, conditions_to_json
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
from .expression import Operation, Question, expression_text
from .guards_of_program import argument_names_of, conditions_of, leaves_of, linear_size
from .input_leaves import InputLeaf, input_leaves
from .input_sizes import InputSizes, refused_size
from .reading import UnreadableCondition, read_condition
