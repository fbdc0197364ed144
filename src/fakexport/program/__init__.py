"""Reads programs and puts them on other devices: what is in them, what moves, where two of them differ."""

from fakexport.program.calling import Calling, fields_of, parameters_of
from fakexport.program.collectives import Collective, collectives, least_received
from fakexport.program.constant_content import content_of
from fakexport.program.derived_program import derived_program, handed_on, with_used_weights, with_weight_names
from fakexport.program.devices import (
    DeviceLiteral,
    device_of_literal,
    devices,
    devices_of_program,
    named_devices,
)
from fakexport.program.differences.alignment import align
from fakexport.program.differences.difference import ComparedProgram, compared, diff, diff_compared
from fakexport.program.differences.fingerprint_difference import diff_fingerprints
from fakexport.program.differences.program_difference import (
    NodeGroup,
    ProgramDifference,
    SignatureDifference,
)
from fakexport.program.differing_numbers import differing_numbers
from fakexport.program.fingerprint import ConstantLine, Fingerprint, NodeLine, PortLine, fingerprint
from fakexport.program.library_operators import (
    library_classes,
    library_modules,
    library_operators,
    python_operators,
)
from fakexport.program.marked_text import plain_repr
from fakexport.program.module_summary import ModuleSummary, inspect_module
from fakexport.program.node_names import (
    NO_PATH,
    module_path,
    operator_name,
    plain_path,
    star,
    star_common,
    target_name,
)
from fakexport.program.opened_modes import Mode, with_open_modes
from fakexport.program.output_names import leaf_names, output_names, user_inputs, user_outputs
from fakexport.program.program_copy import copied_graph, graph_modules, with_plain_indexing
from fakexport.program.program_facts import ProgramFacts, calling_of, facts_of, keep_facts
from fakexport.program.refused_dtypes import RefusedDtypes, refused_dtypes
from fakexport.program.retargeting.device_listing import DeviceListing, inspect_devices
from fakexport.program.retargeting.device_move import DeviceMove
from fakexport.program.retargeting.retarget import RetargetError, RetargetWarning, retarget, retargeted
from fakexport.program.shared_memory import shared_outputs, written_inputs
from fakexport.program.source_span import (
    SourcePaths,
    is_library_code,
    is_model_code,
    is_own_code,
    is_user_code,
    source_span,
    span_of_trace,
)
from fakexport.program.stand_in_inputs import (
    checked_module,
    give_stand_in_inputs,
    has_stand_in_inputs,
    stand_in_inputs,
)
from fakexport.program.summary import ProgramSummary, TensorTotals, ValueSummary, summarise, summary_of
from fakexport.program.tensor_identity import names_by_tensor, tensor_identity
from fakexport.program.tensor_spec import Spelling, SymbolRange, plain_name, symbol_ranges, tensors_in
from fakexport.program.training_mode import training_operators
from fakexport.program.transfers import Transfer, example_size, moved_tensor, transfers
from fakexport.program.unbound_constant import UnboundConstant, UnboundReason
from fakexport.program.unchecked import without_checks
from fakexport.program.unused_parameters import UnusedParameters, unused_parameters
from fakexport.program.walk import Visit, attribute, walk
from fakexport.program.weightless import (
    UnboundProgram,
    WeightlessProgram,
    example_inputs_of,
    has_value,
    unbound_names,
)
from fakexport.program.written_state import written_state
