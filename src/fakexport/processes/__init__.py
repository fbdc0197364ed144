"""Processes that end: within a time, within memory, and with the process that started them. Free of torch."""

from .limited_process import Ended, Limits, run_limited
from .machine import machine_text, processor_text
from .parent import end_with_parent
from .warm_start import NoWarmStart, WarmStart

__all__ = [
    "Ended",
    "Limits",
    "NoWarmStart",
    "WarmStart",
    "end_with_parent",
    "machine_text",
    "processor_text",
    "run_limited",
]
