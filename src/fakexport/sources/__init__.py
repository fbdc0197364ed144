"""Where a model and its example inputs come from: a Python factory, transformers, diffusers, timm."""

from fakexport.sources.adapted_model import lora_layers
from fakexport.sources.adapter import adapter_source, check_mergeable, split_name
from fakexport.sources.adapter_config import AdapterFolder
from fakexport.sources.adapter_inputs import SCALING, input_name
from fakexport.sources.component import component_source, components_of
from fakexport.sources.construction import SEED, constructed
from fakexport.sources.dtype_text import dtype_text, parse_dtype
from fakexport.sources.exchanged_forward import exchanged_forward
from fakexport.sources.input_spec import InputSpec, parse_input_spec
from fakexport.sources.inputs import inputs_from_specs
from fakexport.sources.known_masks import known_masks
from fakexport.sources.operator_library import load_operator_library
from fakexport.sources.resolve import resolve
from fakexport.sources.source import ExampleInputs, Source
from fakexport.sources.source_error import SourceError, how_to_install, is_of_default_config
from fakexport.sources.workload import CacheForm, ExportedWorkload, Workload, WorkloadName, exported_workload
