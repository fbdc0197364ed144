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

from .comparison import Finding
from .results import NOT_RUN, SweepCheck, SweepReport, SweepResult, counts
from .run_file import STATUSES

_PASSED = STATUSES[0]
_ORDER = (*STATUSES, NOT_RUN)
_FROM_BAD = (*reversed(STATUSES[1:]), NOT_RUN, _PASSED)
_CHANGES = ("worse", "not in both", "better", "same")
_MOST_REASONS = 200
_MOST_CHARACTERS = 200
_RUN_COLUMNS = ("status", "reason", "seconds", "peak memory")
_ENVIRONMENT = "environment"
_TONES: Mapping[RuntimeResult, Tone] = {"refused": "bad", "unknown": "warn"}


def results_document(results: SweepReport) -> Document:
    """Return the page. Checks that got worse or do not pass come first."""
    lead = "; ".join(
        f"{run.name}: {run.counts[_PASSED]:,} of {results.total:,} checks export" for run in results.runs
    )
    return Document(
        "fakexport sweep",
        lead,
        "good" if results.runs[-1].counts[_PASSED] == results.total else "bad",
        (
            Section("Counts", tuple(_counts(results))),
            Section("Reasons", tuple(_reasons(results))),
            Section("Checks", (_checks(results),)),
            explanations({code for each in results.results() for code in each.codes}),
            Section("Environments", (_environments(results),)),
        ),
        "sweep.json",
    )


def _counts(results: SweepReport) -> Iterator[Part]:
    yield Paragraph(
        f"{results.total:,} checks in every run. Checks that were refused or did not run count as not passed."
    )
    options = list(dict.fromkeys(check.options for check in results.checks))
    shown = [status for status in _ORDER if any(status in check.statuses for check in results.checks)]
    shown = [_PASSED, *(status for status in shown if status != _PASSED)]
    rows = []
    for name in (None, *options) if len(options) > 1 else (None,):
        checks = [check for check in results.checks if name is None or check.options == name]
        for at, run in enumerate(results.runs):
            found = counts(checks, at)
            share = 100 * found[_PASSED] / len(checks)
            cells = [
                *(Cell(f"{count:,}", count) for count in (len(checks), *(found[each] for each in shown))),
                Cell(f"{share:.1f} %", round(share, 1)),
            ]
            rows.append(Row.of("all" if name is None else name or "(no options)", run.name, *cells))
    caption = "Number of checks by status; the percentage is the share that exports"
    yield Table(caption, ("checks", "run", "of", *shown, "share"), tuple(rows), ("run",))


def _reasons(results: SweepReport) -> Iterator[Table]:
    for run in results.runs:
        rows = tuple(
            Row.of(
                _short(each.reason),
                Cell(each.status, tone=_tone(each.status)),
                Cell(f"{each.count:,}", each.count),
            )
            for each in run.reasons[:_MOST_REASONS]
        )
        if rows:
            caption = f"Why checks of {run.name} do not pass; SOURCE stands for the model"
            left_out = len(run.reasons) - len(rows)
            yield Table(caption, ("reason", "status", "checks"), rows, ("status",), left_out)


def _titles(results: SweepReport) -> tuple[str, ...]:
    """Return the columns of a run. Runtimes are among them, and the environment if a run has several."""
    is_mixed = any(len(each) > 1 for each in _run_environments(results))
    runtimes = dict.fromkeys(name for each in results.results() for name in each.runtimes)
    return (*_RUN_COLUMNS, *runtimes, *([_ENVIRONMENT] if is_mixed else []))


def _checks(results: SweepReport) -> Table:
    is_one = len(results.runs) == 1
    prefixes = ["" if is_one else f"{run.name}: " for run in results.runs]
    change = () if is_one else ("change",)
    titles = _titles(results)
    columns = ("model", "options", *change, *(each + title for each in prefixes for title in titles))
    chosen = ("status", *titles[len(_RUN_COLUMNS) :], _ENVIRONMENT)
    choices = ("options", *change, *(each + title for each in prefixes for title in chosen))
    ordered = sorted(results.checks, key=_rank)
    rows = tuple(_row(results, check, titles) for check in ordered)
    return Table("One row per check; expand it for the command and the findings", columns, rows, choices)


def _rank(check: SweepCheck) -> tuple[int, int]:
    change = _CHANGES.index(check.change) if len(check.results) > 1 else 0
    return change, _FROM_BAD.index(check.statuses[-1])


def _row(results: SweepReport, check: SweepCheck, titles: tuple[str, ...]) -> Row:
    cells = [cell for result in check.results for cell in _result(result, titles)]
    if len(check.results) > 1:
        cells.insert(0, Cell(check.change, tone="bad" if check.change == "worse" else None))
    return Row.of(check.source, check.options, *cells, details=_details(results, check))


def _result(result: SweepResult | None, titles: tuple[str, ...]) -> list[Cell]:
    if result is None:
        return [Cell(NOT_RUN, tone="warn"), *[Cell("")] * (len(titles) - 1)]
    cells = [
        Cell(result.status, tone=_tone(result.status)),
        Cell(_short(result.reason)),
        Cell(f"{result.seconds:.1f}", result.seconds),
        Cell(bytes_text(result.peak_bytes), result.peak_bytes),
    ]
    names = [name for name in titles if name not in (*_RUN_COLUMNS, _ENVIRONMENT)]
    cells += [_answer(result.runtimes.get(name)) for name in names]
    if _ENVIRONMENT in titles:
        cells.append(Cell(_letter(result.environment)))
    return cells


def _answer(result: RuntimeResult | None) -> Cell:
    return Cell("") if result is None else Cell(RESULT_TEXTS[result], tone=_TONES.get(result))


def _details(results: SweepReport, check: SweepCheck) -> Iterator[Part]:
    yield Code(check.command)
    for run, result in zip(results.runs, check.results, strict=True):
        if result is not None and len(result.reason) > _MOST_CHARACTERS:
            yield Paragraph(f"{run.name}: {result.reason}")
        found = () if result is None else result.findings
        if found and len(results.runs) > 1:
            yield Paragraph(run.name)
        yield Findings(tuple(map(_shown, found)))


def _short(reason: str) -> str:
    """Return a reason that fits into a cell; the expanded row shows all of it."""
    return reason if len(reason) <= _MOST_CHARACTERS else f"{reason[:_MOST_CHARACTERS]}…"


def _shown(found: Finding) -> ShownFinding:
    fix = Fixing("fix", found.fix) if found.fix else None
    notes = tuple(("note", note) for note in found.notes)
    return ShownFinding(found.code, found.severity, found.message, found.place, "", notes, fix, is_open=True)


def _run_environments(results: SweepReport) -> list[set[int]]:
    """Return the indices of the environments of each run."""
    return [{each.environment for each in results.results(at)} for at in range(len(results.runs))]


def _environments(results: SweepReport) -> Table:
    rows, run_environments = [], _run_environments(results)
    for at, each in enumerate(results.environments):
        versions = ", ".join(f"{name} {version}" for name, version in each.versions.items())
        runs = ", ".join(
            run.name for run, own in zip(results.runs, run_environments, strict=True) if at in own
        )
        rows.append(Row.of(_letter(at), runs, each.machine or "not recorded", versions or "not recorded"))
    columns = (_ENVIRONMENT, "runs", "machine", "versions")
    return Table("Environments of the checks", columns, tuple(rows))


def _letter(position: int) -> str:
    return f"E{position + 1}"


def _tone(status: str) -> Tone:
    return "good" if status == _PASSED else "warn" if status == NOT_RUN else "bad"
