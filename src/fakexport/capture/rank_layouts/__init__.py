"""Whether the program of a rank computes a part of what the model computes, shown node by node."""

from .constants import check_constants
from .propagation import check_rank_layouts
from .refusal import ShardingChangesResult
