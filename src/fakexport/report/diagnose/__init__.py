"""Detectors: find problems in the results of a build, a capture or an export, and return diagnostics."""

from fakexport.report.diagnose.attention import diagnose_attention
from fakexport.report.diagnose.construction import diagnose_build
from fakexport.report.diagnose.divided_sizes import diagnose_refused_sizes
from fakexport.report.diagnose.failure import diagnose_assumptions, diagnose_failure
from fakexport.report.diagnose.forward_repairs import known_repair
from fakexport.report.diagnose.labels import headline, labels_at
from fakexport.report.diagnose.left_out import diagnose_left_out, unused_note
from fakexport.report.diagnose.plugin_rules import diagnose_with_plugins
from fakexport.report.diagnose.program import diagnose_loaded, diagnose_program
from fakexport.report.diagnose.target_failures import (
    diagnose_internal_fault,
    diagnose_not_saved,
    diagnose_process_ended,
    in_rank,
)
