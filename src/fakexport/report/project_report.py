"""The reports on all models of a repository, and what became of those without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fakexport.report.as_json import to_dict
from fakexport.report.quantity import plural
from fakexport.report.verdict import Report

PROJECT_SCHEMA = "fakexport.check-project/1"
"""Name and version of the format. The version rises when a field changes its meaning or goes away."""


@dataclass(frozen=True)
class ProjectReport:
    """What `fakexport check` found in the sources of `[tool.fakexport]`.

    Args:
        reports: One per source that could be checked, in their order.
        refused: Source -> why it could not be checked, one line each.
    """

    reports: tuple[Report, ...]
    refused: Mapping[str, str]

    @property
    def exit_code(self) -> int:
        """The worst of all sources: 0 clean, 1 findings, 2 not checked."""
        if self.refused:
            return 2
        return 0 if all(report.is_clean for report in self.reports) else 1


def project_summary_line(report: ProjectReport) -> str:
    """Return `3 sources: 1 clean, 1 with findings, 1 not checked`, without a line end."""
    clean = sum(part.is_clean for part in report.reports)
    counts = {
        "clean": clean,
        "with findings": len(report.reports) - clean,
        "not checked": len(report.refused),
    }
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{plural(sum(counts.values()), 'source')}: {said}"


def project_to_dict(report: ProjectReport) -> dict[str, Any]:
    """Return the reports as dicts, lists, strings, numbers, booleans and None."""
    return {
        "schema": PROJECT_SCHEMA,
        "is_clean": report.exit_code == 0,
        "reports": [to_dict(part) for part in report.reports],
        "refused": [{"source": source, "reason": reason} for source, reason in report.refused.items()],
    }
