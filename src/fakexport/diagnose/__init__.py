"""Detectors: from the facts of a build, a capture and a program to diagnostics."""

from fakexport.diagnose.behaviour import diagnose_behaviour
from fakexport.diagnose.constants import diagnose_constants
from fakexport.diagnose.construction import diagnose_build
from fakexport.diagnose.failure import diagnose_failure
from fakexport.diagnose.internal_fault import diagnose_internal_fault
from fakexport.diagnose.memory import diagnose_memory

__all__ = [
    "diagnose_behaviour",
    "diagnose_build",
    "diagnose_constants",
    "diagnose_failure",
    "diagnose_internal_fault",
    "diagnose_memory",
]
