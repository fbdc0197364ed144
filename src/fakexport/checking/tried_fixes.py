"""Verify the fixes of a report: apply each fix to a copy of the model, and check it in a new process."""

from __future__ import annotations

import ast
import linecache
import os
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import SourceFileLoader
from math import ceil
from types import CodeType
from typing import Literal

from fakexport.checking.forked_targets import ShownProgress, answers
from fakexport.checking.isolation import why_shared
from fakexport.checking.target_answer import Answer, Wanted
from fakexport.checking.targets import Target, parse_targets
from fakexport.error import InvalidValue
from fakexport.exporting.capture import Request
from fakexport.files.processes import NoAnswer
from fakexport.report import Report
from fakexport.rules.diagnostics import Change, Diagnostic, Edit, Fix, edited_text, line_after

LIMIT_S = 60.0
"""Time limit for the fixes of one report. A check that took more than half of it is not repeated."""

_Outcome = Literal["works", "fails", "unknown"]
_Key = tuple[object, ...]


def with_tried_fixes(
    report: Report, request: Request, targets: Sequence[Target], *, limit_s: float = LIMIT_S
) -> Report:
    """Return a report that states which of its fixes work, after checking modified copies.

    A fix that does not remove its problem is replaced by general advice. Only fixes with concrete changes are
    tried, and only if each target has its own process. `limit_s` is the time limit for all fixes.
    """
    tried = [each for each in report.diagnostics if each.fix is not None and each.fix.changes]
    timings = [verdict.timings for verdict in report.verdicts]
    took_s = max((each.build_s + each.capture_s + each.analyse_s for each in timings), default=0.0)
    if not tried or 2 * took_s > limit_s or why_shared() is not None:
        return report
    trial = _Trial(report, request, targets, limit_s)
    fixes = trial.fixes(tried)
    found = [replace(each, fix=fixes.get(id(each), each.fix)) for each in report.diagnostics]
    return replace(report, diagnostics=tuple(found))


@dataclass
class _Trial:
    report: Report
    request: Request
    targets: Sequence[Target]
    limit_s: float

    def __post_init__(self) -> None:
        self._ends_at_s = time.monotonic() + self.limit_s

    def fixes(self, tried: Sequence[Diagnostic]) -> dict[int, Fix]:
        """Apply all changes together, then one by one. Return the resulting fixes, by diagnostic id."""
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
        texts = {
            path: edited_text(linecache.getlines(path), (e for e in edits if e.path == path))
            for path in paths
        }
        left_s = self._ends_at_s - time.monotonic()
        if left_s < 1 or not all(map(_is_python, texts.values())):
            return "unknown"
        request = _changed(self.request, changes)
        request = replace(request, prepare=partial(_prepare, request.prepare, texts, left_s))
        shown = ShownProgress([target.spec.name for target in self.targets], None)
        try:
            targets = parse_targets(request.target, request.device_map, request.dtype)
            return answers(request, targets, Wanted(), shown)
        except _AlreadyImported:
            return "unknown"
        except (ValueError, TypeError):
            return "fails"
        except Exception:  # The changed code can raise anything, and the report must be printed in any case.
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
    """Return the general advice that remains if a fix does not work."""
    other = fix.without_condition
    if other.message != fix.message and not other.changes:
        return other
    return Fix(f"no fix is known for this line; this was tried and does not fix it: {fix.message}")


def _prepare(before: object, texts: Mapping[str, str], limit_s: float) -> None:
    _stop_after(limit_s)
    if callable(before):
        before()
    _exchange_source(texts)


def _changed(request: Request, changes: Sequence[Change]) -> Request:
    dtypes = [change.dtype for change in changes if change.dtype is not None]
    dynamic = [spec for change in changes for spec in change.dynamic]
    shapes = request.dynamic_shapes
    if "auto" in dynamic:
        shapes = ["auto"]
    elif dynamic:
        named = {spec.partition("=")[0]: spec for spec in [*(shapes or ()), *dynamic]}
        shapes = [*named.values()]
    return replace(
        request,
        assume=(*request.assume, *dict.fromkeys(a for change in changes for a in change.assume)),
        inputs=[spec for change in changes for spec in change.inputs] or request.inputs,
        dtype=dtypes[0] if dtypes else request.dtype,
        dynamic_shapes=shapes,
    )


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _key(diagnostic: Diagnostic, edits: Sequence[Edit] = ()) -> _Key:
    """Return a key that identifies a problem: its code, its file, and its line number after edits."""
    if diagnostic.primary is None:
        return (diagnostic.code, *diagnostic.notes[:1])
    span = diagnostic.primary.span
    return (diagnostic.code, span.path, line_after(span.path, span.line, edits))


def _is_next(found: Diagnostic, before: Diagnostic) -> bool:
    """Return whether FE302 reports a new restriction: one line can restrict a dimension several times."""
    if found.primary is None or before.primary is None or found.code != "FE302":
        return False
    return found.primary.message != before.primary.message


class _AlreadyImported(InvalidValue):
    """A file was imported before its text could be replaced."""


def _stop_after(limit_s: float) -> None:
    """Exit this process after a time limit, and discard its stdout and stderr."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(ceil(limit_s))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    warnings.simplefilter("ignore")


def _exchange_source(texts: Mapping[str, str]) -> None:
    """Replace the text of files for all later imports of this process, if none is already imported."""
    for module in list(sys.modules.values()):
        if (path := getattr(module, "__file__", None)) in texts:
            raise _AlreadyImported(f"{path} is already imported")
    for path, text in texts.items():
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    stock = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        path = loader.get_filename(name)
        if path in texts:
            return compile(texts[path], path, "exec", dont_inherit=True)
        return stock(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
