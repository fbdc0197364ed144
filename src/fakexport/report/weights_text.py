"""The verification of a checkpoint as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fakexport.diagnostics import render_text
from fakexport.documents import escaped
from fakexport.report.quantity import bytes_text, plural

if TYPE_CHECKING:
    from fakexport.weights import WeightsReport


def render_weights(report: WeightsReport) -> str:
    """Return what was compared, the diagnostics, and one line of summary.

    Plain text without colors; the same report returns the same text. Names of repeated layers are folded,
    `weights_to_dict` has all of them.
    """
    entries = f"{report.entries:,} entries, {bytes_text(report.entry_bytes)}"
    converted = f"; {report.converted} of them are converted as transformers does" if report.converted else ""
    head = [
        escaped(f"model       {report.source}: {plural(report.weights, 'weight')}"),
        escaped(f"checkpoint  {report.checkpoint}: {entries}{converted}"),
    ]
    if report.computed:
        listed = ", ".join(report.computed)
        head.append(escaped(f"computed    {listed}: the checkpoint lacks them, as the model's class allows"))
    severities = [diagnostic.severity for diagnostic in report.diagnostics]
    errors = plural(severities.count("error"), "error")
    warnings = plural(severities.count("warning"), "warning")
    parts = [
        "\n".join(head),
        *map(render_text, report.diagnostics),
        f"{report.summary}; {errors}, {warnings}",
    ]
    return "\n\n".join(parts) + "\n"
