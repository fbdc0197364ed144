"""Inspect exported programs, compare them, and move them to other devices."""

from fakexport.exporting.program.calling import Calling, fields_of, parameters_of
from fakexport.exporting.program.collectives import Collective, collectives, least_received
from fakexport.exporting.program.constant_content import content_of
from fakexport.exporting.program.derived_program import (
    copied_metadata,
    derived_program,
    with_used_weights,
    with_weight_names,
)
from fakexport.exporting.program.devices import (
    DeviceLiteral,
    device_of_literal,
    devices,
    devices_of_program,
    named_devices,
)
from fakexport.exporting.program.differences.alignment import align
from fakexport.exporting.program.differences.difference import ComparedProgram, compared, diff, diff_compared
from fakexport.exporting.program.differences.fingerprint_difference import diff_fingerprints
from fakexport.exporting.program.differing_numbers import ProgramNumbers, differing_numbers
from fakexport.exporting.program.fingerprint import ConstantLine, Fingerprint, NodeLine, PortLine, fingerprint
from fakexport.exporting.program.flattening import flattened
from fakexport.exporting.program.library_operators import (
    library_classes,
    library_modules,
    library_operators,
    python_operators,
)
from fakexport.exporting.program.marked_text import plain_repr
from fakexport.exporting.program.module_summary import ModuleSummary, inspect_module
from fakexport.exporting.program.node_names import (
    NO_PATH,
    module_path,
    operator_name,
    plain_path,
    star,
    star_common,
    target_name,
)
from fakexport.exporting.program.opened_modes import Mode, with_open_modes
from fakexport.exporting.program.output_names import output_names, user_inputs, user_outputs
from fakexport.exporting.program.program_copy import copied_graph, graph_modules, with_plain_indexing
from fakexport.exporting.program.program_facts import (
    ProgramFacts,
    UnboundConstant,
    calling_of,
    facts_of,
    keep_facts,
)
from fakexport.exporting.program.refused_dtypes import refused_dtypes
from fakexport.exporting.program.retargeting.device_clashes import device_clashes
from fakexport.exporting.program.retargeting.device_listing import DeviceListing, inspect_devices
from fakexport.exporting.program.retargeting.device_move import DeviceMove
from fakexport.exporting.program.retargeting.retarget import (
    RetargetError,
    RetargetWarning,
    fake_mode_of,
    retarget,
    retargeted,
)
from fakexport.exporting.program.shared_memory import shared_outputs, written_inputs
from fakexport.exporting.program.source_span import (
    SourcePaths,
    is_library_code,
    is_model_code,
    is_own_code,
    is_user_code,
    reading_span,
    source_span,
    span_of_trace,
)
from fakexport.exporting.program.stand_in_inputs import (
    checked_module,
    give_stand_in_inputs,
    has_stand_in_inputs,
    stand_in_inputs,
)
from fakexport.exporting.program.summary import (
    ProgramSummary,
    summarise,
    summary_of,
)
from fakexport.exporting.program.tensor_identity import constants_read, names_by_tensor, tensor_identity
from fakexport.exporting.program.tensor_spec import (
    Spelling,
    plain_name,
    symbol_ranges,
    tensors_in,
)
from fakexport.exporting.program.training_mode import training_operators
from fakexport.exporting.program.transfers import example_size, moved_tensor, transfers
from fakexport.exporting.program.unchecked import without_checks
from fakexport.exporting.program.unused_parameters import UnusedParameters, unused_parameters
from fakexport.exporting.program.walk import Visit, attribute, input_nodes, subgraphs_of, walk
from fakexport.exporting.program.weightless import (
    WeightlessProgram,
    WeightsNotBoundError,
    example_inputs_of,
    has_value,
    unbound_names,
)
from fakexport.exporting.program.written_state import written_arguments, written_state
