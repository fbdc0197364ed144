"""Diagnostics as data, and their output formats. Standard library only."""

from fakexport.diagnostics.change import Change, Edit, edited_text, line_after
from fakexport.diagnostics.diagnostic import Diagnostic, Fault, Fix, Label, Severity, Span, check_headline
from fakexport.diagnostics.escaping import escaped, escaped_lines
from fakexport.diagnostics.folding import fold
from fakexport.diagnostics.github import plain_body, render_github
from fakexport.diagnostics.raising_conditions import answer_that_goes_on, is_caught
from fakexport.diagnostics.selected_writes import selected_writes
from fakexport.diagnostics.statement import (
    attribute_span,
    columns_of,
    condition_at,
    function_at,
    is_formatted,
    is_in_for,
    is_loop_test,
    is_negated,
    is_only_told,
    is_test,
    last_line_of_loop,
    whole_comprehension,
    with_columns,
    written_places,
)
from fakexport.diagnostics.text import render_text, source_line, source_text
from fakexport.diagnostics.visited_rows import visited_rows
