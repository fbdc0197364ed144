"""Plan the memory that a model or an archive needs on each device at the requested sizes."""

from .peak_memory import diagnose_memory, memory_left
from .plan import plan
from .source_programs import PlanError
from .stages import split, split_traced, summarise_stages
