"""What the trace of a program took for granted about its inputs, as values that every path checks."""

from .condition import Condition, conditions_from_json, conditions_to_json
from .expression import Operation, Question, expression_text
from .input_leaves import InputLeaf, input_leaves
from .linear_size import linear_size
from .reading import UnreadableCondition, read_condition
from .reliance import absence_guards, conditions_of

__all__ = [
    "Condition",
    "InputLeaf",
    "Operation",
    "Question",
    "UnreadableCondition",
    "absence_guards",
    "conditions_from_json",
    "conditions_of",
    "conditions_to_json",
    "expression_text",
    "input_leaves",
    "linear_size",
    "read_condition",
]
