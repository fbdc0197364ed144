"""Tracing equal blocks once: when two calls may share a trace, and how the other one's nodes are made."""

from fakexport._torch.copied_values import TraceNeeded

from .reuse import BlockReuse

__all__ = ["BlockReuse", "TraceNeeded"]
