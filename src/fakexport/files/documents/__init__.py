"""Convert untrusted JSON, TOML and YAML to typed values within limits. Does not import torch."""

from .call_record import CallRecord, GenerationDefaults, StateTensor
from .document_error import DocumentError
from .model_settings import differing_settings, flat_settings, parse_config
from .parsing import collection_paused, memory_estimate, parse_json, parse_toml, parse_yaml
from .program_records import (
    ADAPTER_MODES,
    AdapterMode,
    AdapterRecord,
    Numbers,
    ParallelRecord,
    Parameter,
    ParameterKind,
    Recipe,
    Scalar,
    Shard,
    SizeRange,
    StageRecord,
    Step,
    UnboundName,
    UnboundReason,
    are_divided,
    sizes_text,
)
from .search_pattern import search_pattern
from .typed_json import (
    MAX_INTEGER,
    Most,
    Name,
    Sentence,
    Sha256,
    Size,
    boolean,
    check_keys,
    class_name,
    decimal,
    entries,
    field,
    identifier,
    integer,
    items,
    mapping,
    matching,
    module_name,
    named_items,
    one_of,
    operator_name,
    optional,
    reader_of,
    record,
    sequence,
    source_text,
    stored_fields,
    text,
    union,
)
