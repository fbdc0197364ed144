"""JSON, TOML and YAML from an untrusted author, read within limits into typed values. Free of torch."""

from .call_record import CALLS, CallRecord, GenerationDefaults, StateTensor
from .document_error import DocumentError
from .json_text import collection_paused, memory_estimate, parse_json
from .program_records import (
    ADAPTER_MODES,
    OPERATORS,
    PARAMETER_KINDS,
    UNBOUND_REASONS,
    AdapterMode,
    AdapterRecord,
    Numbers,
    ParallelRecord,
    Parameter,
    ParameterKind,
    Recipe,
    Scalar,
    Shard,
    Step,
    UnboundName,
    UnboundReason,
)
from .search_pattern import search_pattern
from .toml_and_yaml import parse_toml, parse_yaml
from .typed_json import (
    MAX_INTEGER,
    boolean,
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
    text,
    union,
)
