"""Try the fixes of a report: check copies of the model with their changes, in processes of their own."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from linecache import getlines
from typing import Literal

from fakexport.checking.answers import Answer, Wanted
from fakexport.checking.check_call import CheckCall
from fakexport.checking.exchanged_source import AlreadyImported, exchange_source, stop_after
from fakexport.checking.isolation import ShownProgress, answers
from fakexport.checking.targets import Target
from fakexport.diagnostics import Change, Diagnostic, Edit, Fix, edited_text, line_after
from fakexport.isolation import why_shared
from fakexport.processes import NoAnswer
from fakexport.report import Report, Timings

LIMIT_S = 60.0
"""How long fixes of one report are tried; a check that took more than half of it is not repeated."""

_Outcome = Literal["works", "fails", "unknown"]
_Key = tuple[object, ...]


def with_tried_fixes(
    report: Report, call: CheckCall, targets: Sequence[Target], *, limit_s: float = LIMIT_S
) -> Report:
    """Return a report that says which of its fixes work: each is applied to a copy, which is checked.

    A fix that leaves its problem is replaced by what is known without it. Only fixes that have changes are
    tried, and only if each target has a process of its own.

    Args:
        report: The report on the call.
        call, targets: What was checked.
        limit_s: As `LIMIT_S`.
    """
    tried = [each for each in report.diagnostics if each.fix is not None and each.fix.changes]
    took_s = max((sum((t.build_s, t.capture_s, t.analyse_s)) for t in _timings(report)), default=0.0)
    if not tried or 2 * took_s > limit_s or why_shared() is not None:
        return report
    trial = _Trial(report, call, targets, limit_s)
    fixes = trial.fixes(tried)
    found = [replace(each, fix=fixes.get(id(each), each.fix)) for each in report.diagnostics]
    return replace(report, diagnostics=tuple(found))


def _timings(report: Report) -> Iterator[Timings]:
    yield from (verdict.timings for verdict in report.verdicts)


@dataclass
class _Trial:
    report: Report
    call: CheckCall
    targets: Sequence[Target]
    limit_s: float

    def __post_init__(self) -> None:
        self._ends_at_s = time.monotonic() + self.limit_s

    def fixes(self, tried: Sequence[Diagnostic]) -> dict[int, Fix]:
        """Return the fixes of diagnostics, by identity: all first changes at once, then one by one."""
        firsts = [each.fix.changes[0] for each in tried if each.fix is not None]
        outcomes = self._outcomes(tried, firsts) if len(tried) > 1 else {}
        found = {}
        for each in tried:
            assert each.fix is not None
            if outcomes.get(id(each)) == "works":
                found[id(each)] = _verified(each.fix, each.fix.changes[0])
            else:
                found[id(each)] = self._alone(each, each.fix)
        return found

    def _alone(self, diagnostic: Diagnostic, fix: Fix) -> Fix:
        has_failed = True
        for change in fix.changes:
            outcome = self._outcomes([diagnostic], [change])[id(diagnostic)]
            if outcome == "works":
                return _verified(fix, change)
            has_failed &= outcome == "fails"
        return _refuted(fix) if has_failed else fix

    def _outcomes(self, tried: Sequence[Diagnostic], changes: Sequence[Change]) -> Mapping[int, _Outcome]:
        edits = tuple(edit for change in changes for edit in change.edits)
        found = self._answers(changes, edits)
        return {id(each): self._outcome(each, found, edits) for each in tried}

    def _answers(
        self, changes: Sequence[Change], edits: Sequence[Edit]
    ) -> Sequence[Answer | NoAnswer] | Literal["fails", "unknown"]:
        paths = dict.fromkeys(edit.path for edit in edits)
        texts = {path: edited_text(getlines(path), (e for e in edits if e.path == path)) for path in paths}
        left_s = self._ends_at_s - time.monotonic()
        if left_s < 1 or not all(map(_is_python, texts.values())):
            return "unknown"
        call = _changed(self.call, changes)
        call = replace(call, prepare=partial(_prepare, call.prepare, texts, left_s))
        shown = ShownProgress([target.spec.name for target in self.targets], None)
        try:
            return answers(call, self.targets, Wanted(), shown)
        except AlreadyImported:
            return "unknown"
        except (ValueError, TypeError):
            return "fails"
        except Exception:  # whatever the changed code raises: the report is printed in any case
            return "unknown"

    def _outcome(
        self,
        diagnostic: Diagnostic,
        found: Sequence[Answer | NoAnswer] | Literal["fails", "unknown"],
        edits: Sequence[Edit],
    ) -> _Outcome:
        if isinstance(found, str):
            return found
        own = [
            answer
            for target, answer in zip(self.targets, found, strict=True)
            if not diagnostic.targets or target.spec.name in diagnostic.targets
        ]
        left = [each for answer in own if isinstance(answer, Answer) for each in answer.diagnostics]
        errors = [each for each in left if each.severity == "error"]
        key = _key(diagnostic, edits)
        here = [each for each in left if _key(each) == key]
        if diagnostic.primary is not None:
            here += [each for each in errors if _key(each)[1:] == key[1:]]
        if any(_key(each) != key or not _is_next(each, diagnostic) for each in here):
            return "fails"
        known = {_key(each, edits) for each in self.report.diagnostics} - {key}
        is_known = {_key(each) for each in (errors if diagnostic.severity == "error" else left)} <= known
        return "works" if is_known and all(isinstance(answer, Answer) for answer in own) else "unknown"


def _verified(fix: Fix, change: Change) -> Fix:
    return replace(fix, message=change.message or fix.message, changes=(change,), is_verified=True)


def _refuted(fix: Fix) -> Fix:
    """Return what is left of a fix that does not work."""
    other = fix.without_condition
    if other.message != fix.message and not other.changes:
        return other
    return Fix(f"no fix is known for this line; this was tried and does not repair it: {fix.message}")


def _prepare(before: object, texts: Mapping[str, str], limit_s: float) -> None:
    stop_after(limit_s)
    if callable(before):
        before()
    exchange_source(texts)


def _changed(call: CheckCall, changes: Sequence[Change]) -> CheckCall:
    dtypes = [change.dtype for change in changes if change.dtype is not None]
    dynamic = [spec for change in changes for spec in change.dynamic]
    shapes = call.dynamic_shapes
    if "auto" in dynamic:
        shapes = ["auto"]
    elif dynamic:
        named = {spec.partition("=")[0]: spec for spec in [*(shapes or ()), *dynamic]}
        shapes = [*named.values()]
    return replace(
        call,
        assume=(*call.assume, *dict.fromkeys(a for change in changes for a in change.assume)),
        inputs=[spec for change in changes for spec in change.inputs] or call.inputs,
        dtype=dtypes[0] if dtypes else call.dtype,
        dynamic_shapes=shapes,
    )


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _key(diagnostic: Diagnostic, edits: Sequence[Edit] = ()) -> _Key:
    """Return what tells a problem from others: its code and its line, as it is numbered after edits."""
    if diagnostic.primary is None:
        return (diagnostic.code, *diagnostic.notes[:1])
    span = diagnostic.primary.span
    return (diagnostic.code, span.path, line_after(span.path, span.line, edits))


def _is_next(found: Diagnostic, before: Diagnostic) -> bool:
    """Return whether a dimension is restricted in another way than before: a line may do so several times."""
    if found.primary is None or before.primary is None or found.code != "FE302":
        return False
    return found.primary.message != before.primary.message
