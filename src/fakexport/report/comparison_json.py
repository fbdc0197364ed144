"""A program compared with its eager model, as data for other programs; `docs/debugging.md` documents it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fakexport.report.as_json import plain

if TYPE_CHECKING:
    from fakexport.report.comparison import Comparison, Place, TensorError

COMPARISON_SCHEMA = "fakexport.compare/1"
"""Name and version of the format. The version rises when a field changes its meaning or goes away."""


def comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    """Return every field as plain data. A distance without a reference is null, an infinite one "inf"."""
    return {
        "schema": COMPARISON_SCHEMA,
        "is_identical": comparison.is_identical,
        "is_equal": comparison.is_equal,
        "kernels": comparison.kernels,
        "unmatched": comparison.unmatched,
        "first_difference": _place(comparison.first_difference),
        "first_divergence": _place(comparison.first_divergence),
        "outputs": [{"name": output.name, **_error(output.error)} for output in comparison.outputs],
        "modules": plain(comparison.modules),
        "assumptions": list(comparison.assumptions),
    }


def _place(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    return {
        "node": place.node,
        "operator": place.operator,
        "kernel": place.kernel,
        "eager_kernel": place.eager_kernel or place.kernel,
        "module": place.module_path,
        "path": None if place.span is None else place.span.path,
        "line": None if place.span is None else place.span.line,
        **_error(place.error),
    }


def _error(error: TensorError) -> dict[str, Any]:
    return {
        "is_equal": error.is_equal,
        "is_close": error.is_close,
        "difference": plain(error.difference),
        "error": plain(error.program),
        "eager_error": plain(error.eager),
        "tolerance": plain(error.tolerance),
    }
