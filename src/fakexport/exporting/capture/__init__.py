"""Capture a module with its example inputs as a program, or record why the capture failed."""

from fakexport.exporting.capture.capture import Captured, capture
from fakexport.exporting.capture.constants import Recovered, value_or_reason
from fakexport.exporting.capture.dynamic_dims import ExampleSizeError, as_torch_shapes, dynamic_of
from fakexport.exporting.capture.exploration import capture_or_explore
from fakexport.exporting.capture.explored import Exploration, Problem
from fakexport.exporting.capture.export import PartialExportWarning, UnboundConstants, export, exported
from fakexport.exporting.capture.failure import CaptureFailure, guard_span, user_spans
from fakexport.exporting.capture.lost_writes import FunctorchError, LostWriteError
from fakexport.exporting.capture.plain_forward import bound_inputs, plain, plain_forward
from fakexport.exporting.capture.preparation import (
    ModelNotBuilt,
    PreparedModel,
    build_source,
    components,
    loaded_libraries,
    prepare,
)
from fakexport.exporting.capture.python_effects import PythonEffect
from fakexport.exporting.capture.rank_layouts import ShardingChangesResult
from fakexport.exporting.capture.request import ModelRequest, Request
from fakexport.exporting.capture.state_dict_hooks import load_hooks_of
from fakexport.exporting.capture.traced_blocks import TracedBlocks
from fakexport.exporting.program import UnboundConstant
