"""Render reports as SARIF 2.1.0, the format of code scanning on GitHub, GitLab and in editors."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fakexport.files import escaped_lines
from fakexport.models import named_path
from fakexport.report.as_json import json_text, plain
from fakexport.report.rule_page import EXPORTDB, explain
from fakexport.report.verdict import ProjectReport, Report
from fakexport.report.verdict_table import result_text
from fakexport.rules import Rule, rule
from fakexport.rules.diagnostics import Diagnostic, Label, Span, plain_body, source_line

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT_ID = "%SRCROOT%"
_FINGERPRINT = "fakexport/v1"


def render_sarif(project: ProjectReport, *, root: Path) -> str:
    """Return a SARIF log with one run, as ASCII JSON with a final newline.

    Paths below `root` are relative to it (`uriBaseId` `%SRCROOT%`). Files outside of it, such as those of
    installed packages, have absolute URIs. The log does not contain the absolute path of `root`, so it is the
    same on every machine. A finding without a line is reported at the file of the source, if there is one.

    Source: SARIF 2.1.0 with Errata 01, OASIS, 2023.
    """
    found = [(report, diagnostic) for report in project.reports for diagnostic in report.diagnostics]
    codes = list(dict.fromkeys(diagnostic.code for _, diagnostic in found))
    fingerprints = _Fingerprints(root)
    versions = project.reports[0].versions if project.reports else {}
    run = {
        "tool": {"driver": _driver(codes, versions)},
        "invocations": [_invocation(project)],
        "originalUriBaseIds": {ROOT_ID: {"description": {"text": "The folder where fakexport check ran."}}},
        "columnKind": "unicodeCodePoints",
        "results": [
            _result(report.source, diagnostic, codes.index(diagnostic.code), root, fingerprints)
            for report, diagnostic in found
        ],
        "properties": {"sources": [_source(report) for report in project.reports]},
    }
    return json_text({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def _driver(codes: Sequence[str], versions: dict[str, str]) -> dict[str, Any]:
    driver: dict[str, Any] = {"name": "fakexport", "rules": [_rule(rule(code)) for code in codes]}
    if "fakexport" in versions:
        driver["version"] = versions["fakexport"]
    others = {name: version for name, version in versions.items() if name != "fakexport"}
    return {**driver, "properties": {"versions": others}}


def _rule(known: Rule) -> dict[str, Any]:
    page = explain(known.code)
    links = (*known.links, *(EXPORTDB.format(tag) for tag in known.exportdb))
    described: dict[str, Any] = {
        "id": known.code,
        "name": known.name,
        "shortDescription": {"text": known.message},
        "fullDescription": {"text": " ".join(known.why.split())},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": known.severity},
    }
    return {**described, "helpUri": links[0]} if links else described


def _invocation(project: ProjectReport) -> dict[str, Any]:
    refused = [
        {"level": "error", "message": {"text": _plain(f"{source}: {reason}")}}
        for source, reason in project.refused.items()
    ]
    return {
        "executionSuccessful": not refused,
        "exitCode": project.exit_code,
        "toolExecutionNotifications": refused,
    }


def _source(report: Report) -> dict[str, Any]:
    targets = {verdict.target.name: result_text(verdict) for verdict in report.verdicts}
    described: dict[str, Any] = {"source": report.source, "isClean": report.is_clean, "targets": targets}
    for part in ("ranks", "stages"):
        found = {each.target.name: getattr(each, part) for each in report.verdicts}
        if shown := {name: plain(value) for name, value in found.items() if value is not None}:
            described[part] = shown
    return described


def _result(
    source: str, found: Diagnostic, rule_index: int, root: Path, fingerprints: _Fingerprints
) -> dict[str, Any]:
    others = [label for label in found.labels if not label.is_primary]
    return {
        "ruleId": found.code,
        "ruleIndex": rule_index,
        "level": found.severity,
        "message": {"text": _plain(f"{plain_body(found)}\nsource: {source}")},
        "locations": list(_locations(source, found, root)),
        "relatedLocations": [_related(number, label, root) for number, label in enumerate(others, start=1)],
        "partialFingerprints": {_FINGERPRINT: fingerprints.of(source, found)},
        "properties": {"source": source, "targets": list(found.targets), "count": found.count},
    }


def _plain(text: str) -> str:
    """Escape links (SARIF 2.1.0, section 3.11.6) and unprintable characters in a message."""
    return re.sub(r"([\\\[\]])", r"\\\1", escaped_lines(text))


def _locations(source: str, found: Diagnostic, root: Path) -> Iterator[dict[str, Any]]:
    location: dict[str, Any] = {}
    if found.primary is not None:
        location["physicalLocation"] = _physical(found.primary.span, root)
    elif (file := _file_of(source, root)) is not None:
        location["physicalLocation"] = {"artifactLocation": _artifact(file, root)}
    if found.module_path:
        location["logicalLocations"] = [{"fullyQualifiedName": found.module_path, "kind": "module"}]
    if location:
        yield location


def _related(number: int, label: Label, root: Path) -> dict[str, Any]:
    related: dict[str, Any] = {"id": number, "physicalLocation": _physical(label.span, root)}
    return {**related, "message": {"text": _plain(label.message)}} if label.message else related


def _physical(span: Span, root: Path) -> dict[str, Any]:
    region = {"startLine": span.line}
    if span.column is not None:
        region["startColumn"] = span.column
    if span.end_column is not None:
        region["endColumn"] = span.end_column
    return {"artifactLocation": _artifact(span.path, root), "region": region}


def _artifact(path: str, root: Path) -> dict[str, str]:
    """Return a file's SARIF location: relative if below `root`, else absolute. Keep names like `<string>`."""
    if path.startswith("<"):
        return {"uri": _quoted(path)}
    relative = _relative(path, root)
    if relative is None:
        return {"uri": Path(path).as_uri() if os.name == "nt" else f"file://{_quoted(path)}"}
    return {"uri": _quoted(relative), "uriBaseId": ROOT_ID}


def _quoted(path: str) -> str:
    """Quote a path for a URI. User code can set any file name, including one that cannot be encoded."""
    try:
        return quote(os.fsencode(path))
    except UnicodeEncodeError:
        return quote(path.encode(errors="backslashreplace"))


def _relative(path: str, root: Path) -> str | None:
    """Return a path relative to the root; None for an absolute path outside of it."""
    located = Path(path)
    if not located.is_absolute():
        return located.as_posix()
    if located.is_relative_to(root):
        return located.relative_to(root).as_posix()
    with suppress(ValueError):  # Not below the resolved root either, or not a valid file name.
        return located.resolve().relative_to(root.resolve()).as_posix()
    return None


def _file_of(source: str, root: Path) -> str | None:
    """Return the file of a source, such as `model.py` of `model.py:factory`."""
    _, path, _ = named_path(source, root) or ("", "", "")
    return next((file for file in (path, f"{path}/config.json") if path and (root / file).is_file()), None)


class _Fingerprints:
    """Compute fingerprints of findings from the rule, the file, the text of the line, and a counter."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: Counter[str] = Counter()

    def of(self, source: str, found: Diagnostic) -> str:
        span = None if found.primary is None else found.primary.span
        parts = [found.code, source]
        if span is None:
            parts += [found.module_path or "", found.node or ""]
        else:
            line = source_line(span.path, span.line)
            path = _relative(span.path, self._root) or Path(span.path).name
            parts += [path, span.function or "", str(span.line) if line is None else line.strip()]
        digest = hashlib.sha256("\0".join(parts).encode(errors="backslashreplace")).hexdigest()[:32]
        self._seen[digest] += 1
        return f"{digest}:{self._seen[digest]}"
