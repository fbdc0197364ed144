"""Inputs, outputs, conditions and differences of programs as plain values, without importing torch."""

from .condition import Condition, conditions_from_json, conditions_to_json
from .expression import Expression, Operation, Question, expression_text
from .input_leaves import InputLeaf, input_leaves
from .program_difference import (
    ConstantDifference,
    DeviceChange,
    NodeChange,
    NodeGroup,
    ProgramDifference,
    PropertyDifference,
    SignatureDifference,
    Transfer,
    operator_differences,
    range_differences,
    structure_differences,
)
from .reading import WHILE_EXPORTING, UnreadableCondition, read_condition, read_expression
from .values import SymbolRange, ValueSummary, is_lifted, leaf_names
