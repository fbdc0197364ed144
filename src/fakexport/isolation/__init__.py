"""Calls in forked processes: what user code does to its process changes no other. Imports no torch."""

from .forked import forked, why_shared
