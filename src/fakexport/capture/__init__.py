"""From a module and its inputs to a program, or to a failure with all its facts."""

from fakexport.capture.assumed_answers import AssumedAnswer, parse_assumed, with_assumed
from fakexport.capture.built_source import ModelNotBuilt, build_source
from fakexport.capture.capture import Captured, capture, guard_span
from fakexport.capture.capture_facts import facts_at_capture, loaded_libraries
from fakexport.capture.components import components
from fakexport.capture.constants import value_or_reason
from fakexport.capture.dynamic_dims import DynamicDim, DynamicDims, as_torch_shapes, dynamic_of, parse_dynamic
from fakexport.capture.exploration import capture_or_explore
from fakexport.capture.explored import Exploration, Problem
from fakexport.capture.export import export
from fakexport.capture.failure import CaptureFailure, GuardFact, OperatorCall, user_spans
from fakexport.capture.flattening import flattened
from fakexport.capture.given_inputs import given_inputs
from fakexport.capture.kept_masks import KeptMask
from fakexport.capture.lost_transforms import TransformLost
from fakexport.capture.lost_writes import WriteLost
from fakexport.capture.plain_forward import bound_inputs, plain, plain_forward
from fakexport.capture.python_effects import PythonEffect
from fakexport.capture.rank_layouts import ShardingChangesResult
from fakexport.capture.recovered import PartialProgram, Recovered, UnboundConstant, UnboundConstants
from fakexport.capture.state_dict_hooks import load_hooks_of
from fakexport.capture.traced_blocks import TracedBlocks
