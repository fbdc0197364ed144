"""Reads programs and puts them on other devices: what is in them, what moves, where two of them differ."""

from fakexport.program.canonical import canonical_lines
from fakexport.program.devices import DeviceLiteral, devices
from fakexport.program.differences.difference import diff
from fakexport.program.differences.program_difference import (
    ConstantDifference,
    DeviceChange,
    NodeChange,
    NodeGroup,
    OperatorDifference,
    ProgramDifference,
    RangeDifference,
    SignatureDifference,
)
from fakexport.program.equality import Mismatch, nodes_equal
from fakexport.program.library_operators import (
    library_classes,
    library_modules,
    library_operators,
    python_operators,
)
from fakexport.program.module_path import module_path
from fakexport.program.module_summary import ModuleSummary, inspect_module
from fakexport.program.operator_name import operator_name
from fakexport.program.retargeting.device_listing import Breakage, DeviceListing, inspect_devices
from fakexport.program.retargeting.retarget import (
    Retargeted,
    RetargetError,
    RetargetWarning,
    retarget,
    retargeted,
)
from fakexport.program.shared_memory import SharedOutput, WrittenInput, shared_outputs, written_inputs
from fakexport.program.source_span import source_span
from fakexport.program.summary import ProgramSummary, TensorTotals, ValueSummary, summarise
from fakexport.program.summary_of import summary_of
from fakexport.program.symbol_range import SymbolRange
from fakexport.program.tensor_spec import TensorSpec
from fakexport.program.training_mode import TrainingOperator, training_operators
from fakexport.program.transfers import Transfer, transfers
from fakexport.program.unused_parameters import UnusedParameters, unused_parameters
from fakexport.program.walk import Visit, walk
from fakexport.program.weightless import UnboundProgram, WeightlessProgram

__all__ = [
    "Breakage",
    "ConstantDifference",
    "DeviceChange",
    "DeviceListing",
    "DeviceLiteral",
    "Mismatch",
    "ModuleSummary",
    "NodeChange",
    "NodeGroup",
    "OperatorDifference",
    "ProgramDifference",
    "ProgramSummary",
    "RangeDifference",
    "RetargetError",
    "RetargetWarning",
    "Retargeted",
    "SharedOutput",
    "SignatureDifference",
    "SymbolRange",
    "TensorSpec",
    "TensorTotals",
    "TrainingOperator",
    "Transfer",
    "UnboundProgram",
    "UnusedParameters",
    "ValueSummary",
    "Visit",
    "WeightlessProgram",
    "WrittenInput",
    "canonical_lines",
    "devices",
    "diff",
    "inspect_devices",
    "inspect_module",
    "library_classes",
    "library_modules",
    "library_operators",
    "module_path",
    "nodes_equal",
    "operator_name",
    "python_operators",
    "retarget",
    "retargeted",
    "shared_outputs",
    "source_span",
    "summarise",
    "summary_of",
    "training_operators",
    "transfers",
    "unused_parameters",
    "walk",
    "written_inputs",
]
