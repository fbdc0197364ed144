"""HTML page for the results of a sweep: counts, reasons, and a row per check with all runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fakexport.report import (
    RESULT_TEXTS,
    Cell,
    Code,
    Document,
    Findings,
    Fixing,
    Paragraph,
    Part,
    Row,
    RuntimeResult,
    Section,
    Table,
    Tone,
    bytes_text,
    explanations,
)
from fakexport.report import Finding as ShownFinding

from .comparison import Finding, answers_of, findings_of
from .results import NOT_RUN, CheckResults, SweepResults
from .run_file import STATUSES, SweepRecord

_PASSED = STATUSES[0]
_ORDER = (*STATUSES, NOT_RUN)
_FROM_BAD = (*reversed(STATUSES[1:]), NOT_RUN, _PASSED)
_CHANGES = ("worse", "not in both", "better", "same")
_MOST_REASONS = 200
_MOST_CHARACTERS = 200
_RUN_COLUMNS = ("status", "reason", "seconds", "peak memory")
_ENVIRONMENT = "environment"
_TONES: Mapping[RuntimeResult, Tone] = {"refused": "bad", "unknown": "warn"}


def results_document(results: SweepResults) -> Document:
    """Return the page. Checks that got worse or do not pass come first."""
    total = len(results.checks)
    passed = [results.counts(run).get(_PASSED, 0) for run in range(len(results.names))]
    lead = "; ".join(
        f"{name}: {count:,} of {total:,} checks export"
        for name, count in zip(results.names, passed, strict=True)
    )
    return Document(
        "fakexport sweep",
        lead,
        "good" if passed[-1] == total else "bad",
        (
            Section("Counts", tuple(_counts(results))),
            Section("Reasons", tuple(_reasons(results))),
            Section("Checks", (_checks(results),)),
            explanations(_codes(results)),
            Section("Environments", (_environments(results),)),
        ),
        "sweep.json",
    )


def _counts(results: SweepResults) -> Iterator[Part]:
    yield Paragraph(
        f"{len(results.checks):,} checks in every run. Checks that were refused or did not run "
        "count as not passed."
    )
    options = list(dict.fromkeys(check.options for check in results.checks))
    shown = [status for status in _ORDER if any(status in check.statuses for check in results.checks)]
    shown = [_PASSED, *(status for status in shown if status != _PASSED)]
    rows = []
    for name in (None, *options) if len(options) > 1 else (None,):
        of = sum(name is None or check.options == name for check in results.checks)
        for run, title in enumerate(results.names):
            found = results.counts(run, name)
            share = 100 * found.get(_PASSED, 0) / of if of else 0.0
            counts = (of, *(found.get(status, 0) for status in shown))
            cells = [
                *(Cell(f"{count:,}", count) for count in counts),
                Cell(f"{share:.1f} %", round(share, 1)),
            ]
            rows.append(Row.of("all" if name is None else name or "(no options)", title, *cells))
    caption = "Number of checks by status; the percentage is the share that exports"
    yield Table(caption, ("checks", "run", "of", *shown, "share"), tuple(rows), ("run",))


def _reasons(results: SweepResults) -> Iterator[Table]:
    for run, name in enumerate(results.names):
        found = results.reasons(run)
        rows = tuple(
            Row.of(_short(reason), Cell(status, tone=_tone(status)), Cell(f"{count:,}", count))
            for status, reason, count in found[:_MOST_REASONS]
        )
        if rows:
            caption = f"Why checks of {name} do not pass; SOURCE stands for the model"
            yield Table(caption, ("reason", "status", "checks"), rows, ("status",), len(found) - len(rows))


def _titles(results: SweepResults) -> tuple[str, ...]:
    """Return the columns of a run. Runtimes are among them, and the environment if a run has several."""
    is_mixed = any(len(each) > 1 for each in results.run_environments)
    return (*_RUN_COLUMNS, *results.runtimes, *([_ENVIRONMENT] if is_mixed else []))


def _checks(results: SweepResults) -> Table:
    is_one = len(results.names) == 1
    prefixes = ["" if is_one else f"{name}: " for name in results.names]
    change = () if is_one else ("change",)
    titles = _titles(results)
    columns = ("model", "options", *change, *(each + title for each in prefixes for title in titles))
    chosen = ("status", *titles[len(_RUN_COLUMNS) :], _ENVIRONMENT)
    choices = ("options", *change, *(each + title for each in prefixes for title in chosen))
    ordered = sorted(results.checks, key=_rank)
    rows = tuple(_row(results, check, titles) for check in ordered)
    return Table("One row per check; expand it for the command and the findings", columns, rows, choices)


def _rank(check: CheckResults) -> tuple[int, int]:
    change = _CHANGES.index(check.change) if len(check.records) > 1 else 0
    return change, _FROM_BAD.index(check.statuses[-1])


def _row(results: SweepResults, check: CheckResults, titles: tuple[str, ...]) -> Row:
    cells = [cell for record in check.records for cell in _result(results, record, titles)]
    if len(check.records) > 1:
        cells.insert(0, Cell(check.change, tone="bad" if check.change == "worse" else None))
    return Row.of(check.source, check.options, *cells, details=_details(results, check))


def _result(results: SweepResults, record: SweepRecord | None, titles: tuple[str, ...]) -> list[Cell]:
    if record is None:
        return [Cell(NOT_RUN, tone="warn"), *[Cell("")] * (len(titles) - 1)]
    cells = [
        Cell(record.status, tone=_tone(record.status)),
        Cell(_short(record.reason)),
        Cell(f"{record.seconds:.1f}", record.seconds),
        Cell(bytes_text(record.peak_bytes), record.peak_bytes),
    ]
    answers = answers_of(record)
    cells += [_answer(answers.get(name)) for name in titles if name not in (*_RUN_COLUMNS, _ENVIRONMENT)]
    if _ENVIRONMENT in titles:
        cells.append(Cell(_letter(results.environment(record))))
    return cells


def _answer(result: RuntimeResult | None) -> Cell:
    return Cell("") if result is None else Cell(RESULT_TEXTS[result], tone=_TONES.get(result))


def _details(results: SweepResults, check: CheckResults) -> Iterator[Part]:
    yield Code(check.command)
    for name, record in zip(results.names, check.records, strict=True):
        if record is not None and len(record.reason) > _MOST_CHARACTERS:
            yield Paragraph(f"{name}: {record.reason}")
        found = () if record is None else findings_of(record)
        if found and len(results.names) > 1:
            yield Paragraph(name)
        yield Findings(tuple(map(_shown, found)))


def _short(reason: str) -> str:
    """Return a reason that fits into a cell; the expanded row shows all of it."""
    return reason if len(reason) <= _MOST_CHARACTERS else f"{reason[:_MOST_CHARACTERS]}…"


def _shown(found: Finding) -> ShownFinding:
    fix = Fixing("fix", found.fix) if found.fix else None
    notes = tuple(("note", note) for note in found.notes)
    return ShownFinding(found.code, found.severity, found.message, found.place, "", notes, fix, is_open=True)


def _codes(results: SweepResults) -> set[str]:
    records = (record for check in results.checks for record in check.records if record is not None)
    return {finding.code for record in records for finding in findings_of(record)}


def _environments(results: SweepResults) -> Table:
    rows = []
    for at, each in enumerate(results.environments):
        versions = ", ".join(f"{name} {version}" for name, version in each.versions.items())
        runs = ", ".join(
            name for name, own in zip(results.names, results.run_environments, strict=True) if at in own
        )
        rows.append(Row.of(_letter(at), runs, each.machine or "not recorded", versions or "not recorded"))
    columns = (_ENVIRONMENT, "runs", "machine", "versions")
    return Table("Environments of the checks", columns, tuple(rows))


def _letter(position: int) -> str:
    return f"E{position + 1}"


def _tone(status: str) -> Tone:
    return "good" if status == _PASSED else "warn" if status == NOT_RUN else "bad"
