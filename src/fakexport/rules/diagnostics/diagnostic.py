"""The value types of a diagnostic: where the fault is, what it is, why, and how to fix it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, get_args

from fakexport.rules.diagnostics.change import Change

Severity = Literal["error", "warning", "note"]
Origin = Literal["traceback", "stack_trace", "guard", "source"]
Fault = Literal["model", "inputs", "operator library", "torch", "fakexport", "target", "checkpoint"]

MAX_MESSAGE_LENGTH = 80
_CODE = re.compile(r"[A-Z]{2,8}[0-9]{3}")


@dataclass(frozen=True)
class Span:
    """A position in a source file, on a single line.

    Args:
        path: File name as Python reported it. It may be absolute or relative, and need not exist.
        line: Line number, from 1.
        column: First character, counted from 1 (Python's `co_positions` counts UTF-8 bytes from 0). None if
            unknown.
        end_column: One past the last character, counted from 1. None if unknown or on a later line.
        function: Name of the function that contains the line.
        origin: How the position was found: in the traceback of an exception (`traceback`), in the stack trace
            of a graph node (`stack_trace`), in a guard of the shape environment (`guard`), or by a search in
            the source text (`source`).

    Raises:
        ValueError: `line` or `column` is below 1, `end_column` is not after `column`, or `origin` is unknown.
    """

    path: str
    line: int
    column: int | None = None
    end_column: int | None = None
    function: str | None = None
    origin: Origin | None = None

    def __post_init__(self) -> None:
        if self.line < 1:
            raise ValueError(f"line counts from 1, got {self.line}")
        if self.column is not None and self.column < 1:
            raise ValueError(f"column counts from 1, got {self.column}")
        if self.end_column is not None and (self.column is None or self.end_column <= self.column):
            raise ValueError(f"end_column {self.end_column} is not after column {self.column}")
        if self.origin is not None:
            _check_choice("origin", self.origin, get_args(Origin))


@dataclass(frozen=True)
class Label:
    """A source position with a message about it.

    Args:
        span: The position.
        message: What happens there. It may be empty or have several lines.
        is_primary: Whether this is the cause of the diagnostic, rather than a related position.
    """

    span: Span
    message: str
    is_primary: bool = True


@dataclass(frozen=True)
class Fix:
    """How to fix the fault.

    Args:
        message: The fix, as an imperative.
        is_safe: Whether the fix leaves the model's results unchanged.
        command: A shell command that applies the fix.
        changes: Changes that can be applied automatically. The first is tried first.
        is_verified: Whether a change was applied to a copy of the source and removed the diagnostic.
    """

    message: str
    is_safe: bool = False
    command: str | None = None
    changes: tuple[Change, ...] = ()
    is_verified: bool = False

    @classmethod
    def under(cls, condition: str, change: str, *, otherwise: Fix, changes: tuple[Change, ...] = ()) -> Fix:
        """Return a fix with a condition and an alternative. The condition may be true for only one target."""
        other = [replace(each, message=each.message or otherwise.message) for each in otherwise.changes]
        message = f"if {condition}, {change}{_OTHERWISE}{otherwise.message}"
        return cls(message, changes=(*changes, *other))

    @property
    def without_condition(self) -> Fix:
        """The fix without its conditional part, so that it applies to all targets."""
        message = self.message.rpartition(_OTHERWISE)[2]
        if message == self.message:
            return self
        others = tuple(replace(each, message="") for each in self.changes if each.message == message)
        return replace(self, message=message, changes=others, is_verified=False)

    @property
    def title(self) -> str:
        """The title of the fix in a report."""
        return "fix (verified)" if self.is_verified else "fix"


_OTHERWISE = "; if not, "


@dataclass(frozen=True)
class Diagnostic:
    """One finding of a check.

    This is only data; the other modules of this package format it as text. Create it with `Rule.diagnostic`,
    rather than with the constructor.

    Args:
        code: Code of the rule: `FE` and three digits; other letters for a rule of an installed package.
        severity: An `error` fails the check. A `warning` or a `note` does not.
        message: Headline of at most 80 characters, the same for all diagnostics of a rule. Labels and notes
            contain the names and numbers of a specific case.
        labels: Source positions. If there are any, exactly one is primary.
        notes: Further facts. Each is a sentence, or a text of several lines such as torch's own message.
        fix: The specific fix, if there is one.
        node: Name of the graph node in the program of the first target.
        module_path: Path of the module, such as `model.layers.3.mlp`.
        count: Number of occurrences in one program, at least 1.
        fault: What caused the problem and must be changed, such as `model` or `checkpoint`.
        targets: Names of the targets with this finding, in the order of the check; empty if the finding does
            not depend on the target.

    Raises:
        ValueError: A field violates one of these rules.
    """

    code: str
    severity: Severity
    message: str
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    fix: Fix | None = None
    node: str | None = None
    module_path: str | None = None
    count: int = 1
    fault: Fault = "model"
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_headline(self.code, self.severity, self.message, self.fault)
        if self.count < 1:
            raise ValueError(f"count starts at 1, got {self.count}")
        if self.labels and sum(label.is_primary for label in self.labels) != 1:
            raise ValueError(f"{self.code} needs exactly one primary label")

    @property
    def primary(self) -> Label | None:
        """The primary label, which marks the cause, or None if there are no labels."""
        return next((label for label in self.labels if label.is_primary), None)


def check_headline(code: str, severity: str, message: str, fault: str) -> None:
    """Check the fields that a rule and its diagnostics share.

    Raises:
        ValueError: The code is malformed, the severity or fault is unknown, or the message is empty, longer
            than 80 characters, or has several lines.
    """
    if not _CODE.fullmatch(code):
        raise ValueError(f"a code is capital letters, such as FE, followed by three digits, got {code!r}")
    _check_choice("severity", severity, get_args(Severity))
    _check_choice("fault", fault, get_args(Fault))
    if not message or "\n" in message:
        raise ValueError(f"the message of {code} must be one line of text")
    if len(message) > MAX_MESSAGE_LENGTH:
        raise ValueError(
            f"the message of {code} has {len(message)} characters; at most {MAX_MESSAGE_LENGTH} are allowed"
        )


def _check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{field} must be one of {', '.join(choices)}; got {value!r}")
