"""Verify, node by node, that the program of one rank computes its share of the model's result."""

from .layout import ShardingChangesResult
from .propagation import check_rank_layouts
from .stored_tensors import check_constants, check_sharded_weights
