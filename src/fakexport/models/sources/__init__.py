"""Sources of models and example inputs: a Python factory, transformers, diffusers, timm, torchvision."""

from fakexport.models.sources.adapters.adapted_model import lora_layers
from fakexport.models.sources.adapters.adapter import adapter_source, check_mergeable, split_name
from fakexport.models.sources.adapters.adapter_config import AdapterFolder
from fakexport.models.sources.adapters.adapter_inputs import SCALING, input_name
from fakexport.models.sources.components.component import component_source, components_of
from fakexport.models.sources.construction import SEED, constructed
from fakexport.models.sources.dtype_text import dtype_text, parse_dtype
from fakexport.models.sources.inputs import InputSpec, inputs_from_specs, parse_input_spec
from fakexport.models.sources.patched_forward import patched_forward
from fakexport.models.sources.python.operator_library import load_operator_library
from fakexport.models.sources.resolve import resolve
from fakexport.models.sources.source import ExampleInputs, Source
from fakexport.models.sources.source_error import SourceError, how_to_install, is_of_default_config
from fakexport.models.sources.transformers.known_masks import known_masks
from fakexport.models.sources.workload import (
    CacheForm,
    ExportedWorkload,
    Workload,
    WorkloadName,
    exported_workload,
)
