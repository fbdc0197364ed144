"""The value types of a diagnostic: where, what, why, and how to fix it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, get_args

from fakexport.diagnostics.change import Change

Severity = Literal["error", "warning", "note"]
Origin = Literal["traceback", "stack_trace", "guard", "source"]
Fault = Literal["model", "inputs", "operator library", "torch", "fakexport", "target", "checkpoint"]

MAX_MESSAGE_LENGTH = 80
_CODE = re.compile(r"FE[0-9]{3}")


@dataclass(frozen=True)
class Span:
    """A place in a source file, on one line.

    Args:
        path: File name as Python reported it; absolute or relative, not checked for existence.
        line: Line number, from 1.
        column: First character, from 1 and counted in characters (Python 3.11's `co_positions` counts
            UTF-8 bytes from 0). None where it is not known.
        end_column: One past the last character, from 1. None where it is not known or on a later line.
        function: Name of the function that holds the line.
        origin: How the place is known: a frame of a raised error (`traceback`), the text that a graph
            node carries (`stack_trace`), a guard of the shape environment (`guard`), or a search in
            the source text (`source`).
    Raises:
        ValueError: `line` or `column` below 1, a bad `end_column`, or an unknown `origin`.
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
    """A place and what is to be said about it.

    Args:
        span: The place.
        message: What happens there; may be empty, and may have several lines.
        is_primary: True for the culprit, False for places that help to understand it.
    """

    span: Span
    message: str
    is_primary: bool = True


@dataclass(frozen=True)
class Fix:
    """What to change.

    Args:
        message: The change, as an order to the reader.
        is_safe: True if the change keeps what the model computes.
        command: A shell command that makes the change.
        changes: Ways to follow it without a decision of the reader, the first one first.
        is_verified: It was applied to a copy, and the problem was gone.
    """

    message: str
    is_safe: bool = False
    command: str | None = None
    changes: tuple[Change, ...] = ()
    is_verified: bool = False

    @classmethod
    def under(cls, condition: str, change: str, *, otherwise: Fix, changes: tuple[Change, ...] = ()) -> Fix:
        """Return a fix that holds under a condition, which may be known of one target alone."""
        other = [replace(each, message=each.message or otherwise.message) for each in otherwise.changes]
        message = f"if {condition}, {change}{_OTHERWISE}{otherwise.message}"
        return cls(message, changes=(*changes, *other))

    @property
    def without_condition(self) -> Fix:
        """What holds for other targets too."""
        message = self.message.rpartition(_OTHERWISE)[2]
        if message == self.message:
            return self
        others = tuple(replace(each, message="") for each in self.changes if each.message == message)
        return replace(self, message=message, changes=others, is_verified=False)

    @property
    def title(self) -> str:
        """The word before it in a report."""
        return "fix (verified)" if self.is_verified else "fix"


_OTHERWISE = "; if not, "


@dataclass(frozen=True)
class Diagnostic:
    """One finding. Data only: the renderers of this room turn it into text.

    Rules make diagnostics (`Rule.diagnostic`); detectors should not call this constructor themselves.

    Args:
        code: Permanent code of the rule, `FE` and three digits.
        severity: An `error` fails the check, a `warning` and a `note` do not.
        message: Headline, at most 80 characters, constant per rule; numbers and names go to labels and notes.
        labels: Places; if there are any, exactly one of them is primary.
        notes: Further facts, each one sentence or a text of several lines (torch's own message).
        fix: The change that repairs it, if there is a specific one.
        node: Name of the graph node, in the program of the first target.
        module_path: Path of the module, such as `model.layers.3.mlp`.
        count: How often it occurs in one program, from 1.
        fault: Who can repair it.
        targets: Names of the targets that show it, in the order of the check. Empty: not of a target.
    Raises:
        ValueError: a field breaks one of the rules above.
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
        """The label of the culprit, or None where no place is known."""
        return next((label for label in self.labels if label.is_primary), None)


def check_headline(code: str, severity: str, message: str, fault: str) -> None:
    """Check what a rule and its diagnostics have in common.

    Raises:
        ValueError: a malformed code, an unknown severity or fault, a message that is empty, longer
            than 80 characters or on several lines.
    """
    if not _CODE.fullmatch(code):
        raise ValueError(f"a code is FE followed by three digits, got {code!r}")
    _check_choice("severity", severity, get_args(Severity))
    _check_choice("fault", fault, get_args(Fault))
    if not message or "\n" in message:
        raise ValueError(f"the message of {code} must be one line of text")
    if len(message) > MAX_MESSAGE_LENGTH:
        raise ValueError(f"the message of {code} has {len(message)} characters, at most {MAX_MESSAGE_LENGTH}")


def _check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{field} must be one of {', '.join(choices)}; got {value!r}")
