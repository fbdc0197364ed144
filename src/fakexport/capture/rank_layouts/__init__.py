"""Whether the program of a rank computes a part of what the model computes, shown node by node."""

from .propagation import ShardingChangesResult, check_rank_layouts
