"""Diagnostics as data, and their output formats. Uses only the standard library."""

from fakexport.rules.diagnostics.change import Change, Edit, edited_text, line_after
from fakexport.rules.diagnostics.diagnostic import (
    Diagnostic,
    Fault,
    Fix,
    Label,
    Severity,
    Span,
    check_headline,
)
from fakexport.rules.diagnostics.folding import fold
from fakexport.rules.diagnostics.github import plain_body, render_github
from fakexport.rules.diagnostics.statement import (
    attribute_span,
    condition_at,
    function_at,
    function_of,
    is_at,
    is_formatted,
    is_in_for,
    is_loop_test,
    is_negated,
    is_only_told,
    last_line_of_loop,
    span_of,
    tries_around,
    whole_comprehension,
    with_columns,
    written_places,
)
from fakexport.rules.diagnostics.text import render_text, source_and_facts, source_line, source_text
