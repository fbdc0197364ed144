"""Whether a runtime accepts a program, and which operators the runtime does not run itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fakexport.files import escaped
from fakexport.report.quantity import plural
from fakexport.report.table import wrapped
from fakexport.report.transfer_listing import place_text
from fakexport.rules.diagnostics import Diagnostic, Span

RuntimeResult = Literal["taken", "rewritten", "partly", "refused", "unknown"]

RESULT_TEXTS: Mapping[RuntimeResult, str] = {
    "taken": "taken",
    "rewritten": "taken with rewrites",
    "partly": "partly",
    "unknown": "unknown",
    "refused": "not",
}
"""The results as reports show them, from good to bad."""

_INDENT = " " * 4
_MOST_LINES = 8


@dataclass(frozen=True)
class Fallback:
    """An operator that runs outside of the runtime's own backend.

    Args:
        operator: Name of the operator in the program that the backend gets.
        reason: Why the backend does not run it.
        arguments: Arguments of its first call: dtypes and shapes of tensors, and values of attributes.
        count: Number of its calls.
        span: Source line of the first call; None if unknown.
        fix: How to change the model so that the backend runs it; None if no fix is known.
    """

    operator: str
    reason: str
    arguments: str
    count: int
    span: Span | None
    fix: str | None = None


@dataclass(frozen=True)
class RuntimeVerdict:
    """The answer of one runtime for a program without weights.

    Args:
        runtime: Name of the runtime, as for `--runtime`.
        versions: Versions of the packages that the answer comes from.
        result: `taken`; `rewritten`: taken with the rewrites in `rewrites`; `partly`: the operators in
            `fallbacks` run in `fallback_to`; `refused`: the report's diagnostics with a code in `codes` say
            why; `unknown`: the runtime could not be asked, for the reason in the first note.
        rewrites: Changes to the program, one sentence each. `fakexport compile` makes those that name no
            command and no Python code.
        fallbacks: Operators that run outside of the runtime's own backend.
        fallback_to: What runs these operators.
        notes: Facts that the user should know, one sentence each.
        codes: Codes of the diagnostics, if the result is `refused`.
        seconds: Time that the answer took.
        diagnostics: The diagnostics, which are also in the report.
    """

    runtime: str
    versions: str
    result: RuntimeResult
    rewrites: tuple[str, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    fallback_to: str = ""
    notes: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    diagnostics: tuple[Diagnostic, ...] = field(default=(), repr=False, compare=False)

    @property
    def text(self) -> str:
        """The result in one line: `partly: 3 operators fall back to ExecuTorch's portable kernels`."""
        found = RESULT_TEXTS[self.result]
        match self.result:
            case "partly":
                verb = "falls" if len(self.fallbacks) == 1 else "fall"
                return f"{found}: {plural(len(self.fallbacks), 'operator')} {verb} back to {self.fallback_to}"
            case "refused":
                counts = {code: self.codes.count(code) for code in self.codes}
                codes = (code if count == 1 else f"{count} x {code}" for code, count in counts.items())
                return f"{found}: {', '.join(codes)}"
            case _:
                return found


def runtime_listing(name: str, verdicts: tuple[RuntimeVerdict, ...], *, width: int) -> Iterator[str]:
    """Yield the lines about the runtimes of one target."""
    yield f"  {escaped(name)}"
    for verdict in verdicts:
        head = f"{verdict.runtime}: {verdict.text} ({verdict.versions})"
        yield from wrapped(head, width, first=_INDENT, later=_INDENT * 2)
        for text in runtime_details(verdict):
            yield from wrapped(text, width, first=_INDENT * 2, later=_INDENT * 3)


def runtime_details(verdict: RuntimeVerdict) -> Iterator[str]:
    """Yield the rewrites, the fallbacks and the notes of a verdict, one sentence each."""
    yield from (f"rewrite: {text}" for text in verdict.rewrites)
    for found in verdict.fallbacks[:_MOST_LINES]:
        times = f" x {found.count}" if found.count > 1 else ""
        place = f" at {place_text(found.span)}" if found.span is not None else ""
        fix = f"; fix: {found.fix}" if found.fix else ""
        yield f"{found.operator}({found.arguments}){times}{place}: {found.reason}{fix}"
    if (more := len(verdict.fallbacks) - _MOST_LINES) > 0:
        yield f"and {more:,} more; --format json lists them all"
    yield from (f"note: {text}" for text in verdict.notes)
