"""Detectors: turn the facts of a build, a capture and a program into diagnostics."""

from fakexport.diagnose.construction import diagnose_build
from fakexport.diagnose.failure import diagnose_assumptions, diagnose_failure
from fakexport.diagnose.internal_fault import diagnose_internal_fault
from fakexport.diagnose.labels import headline, labels_at
from fakexport.diagnose.left_out import diagnose_left_out, unused_note
from fakexport.diagnose.peak_memory import memory_left
from fakexport.diagnose.process_ended import diagnose_process_ended
from fakexport.diagnose.program import diagnose_loaded, diagnose_program
from fakexport.diagnose.rank_failures import in_rank
