"""Documents from an untrusted author: JSON read within limits, into values of a known type. Free of torch."""

from .adapter_record import ADAPTER_MODES, AdapterMode, AdapterRecord
from .call_record import CALLS, CallRecord, GenerationDefaults, StateTensor
from .collection_pause import collection_paused
from .document_error import DocumentError
from .escaping import escaped
from .json_text import memory_estimate, parse_json
from .library_names import class_name, module_name, operator_name
from .parallel_record import ParallelRecord, Shard
from .parameter import PARAMETER_KINDS, Parameter, ParameterKind, Scalar
from .recipe import OPERATORS, Numbers, Recipe, Step
from .typed_json import (
    MAX_INTEGER,
    boolean,
    decimal,
    entries,
    field,
    identifier,
    integer,
    items,
    mapping,
    matching,
    named_items,
    one_of,
    optional,
    record,
    sequence,
    text,
    union,
)
