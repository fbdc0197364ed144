"""Detectors: turn the facts of a build, a capture and a program into diagnostics."""

from fakexport.diagnose.construction import diagnose_build
from fakexport.diagnose.failure import diagnose_assumptions, diagnose_failure
from fakexport.diagnose.labels import headline, labels_at
from fakexport.diagnose.left_out import diagnose_left_out, unused_note
from fakexport.diagnose.peak_memory import memory_left
from fakexport.diagnose.program import diagnose_loaded, diagnose_program
from fakexport.diagnose.target_failures import (
    diagnose_internal_fault,
    diagnose_not_saved,
    diagnose_process_ended,
    in_rank,
)
