"""The report of `verify_buffers`: tensors that checkpoints omit and that have wrong values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fakexport.archive.weights.weights_report import fold_names
from fakexport.files import escaped
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix, Label, Span, render_text

_LINES = 12


@dataclass(frozen=True)
class WrongBuffer:
    """A tensor whose values differ from the values that the model's code computes.

    Args:
        name: Full name, such as `model.rotary_emb.inv_freq`.
        fault: The fault in a few words, such as `largest difference 0.8`.
        difference: The largest difference; NaN if only one of the values is NaN; infinity if unknown.
        span: The line that creates the tensor, if it was found.
    """

    name: str
    fault: str
    difference: float
    span: Span | None = None


@dataclass(frozen=True)
class UncheckedBuffer:
    """A tensor whose correct value is unknown.

    Args:
        name: Full name.
        reason: Why the value is unknown, as a clause.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class BuffersReport:
    """The result of checking the values of tensors that checkpoints omit.

    Args:
        origin: How the correct values were computed.
        right: Names of the tensors with correct values.
        wrong: Tensors with wrong values.
        unchecked: Tensors whose correct value is unknown.
        is_repaired: Whether the wrong tensors were repaired.
    """

    origin: str
    right: tuple[str, ...]
    wrong: tuple[WrongBuffer, ...]
    unchecked: tuple[UncheckedBuffer, ...]
    is_repaired: bool = False

    @property
    def is_right(self) -> bool:
        """Whether no tensor was found to be wrong. Tensors that could not be checked may still be wrong."""
        return not self.wrong

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """One diagnostic for all tensors with the same fault and source line."""
        groups: dict[tuple[Span | None, str], list[str]] = {}
        for found in self.wrong:
            groups.setdefault((found.span, found.fault), []).append(found.name)
        return tuple(_diagnostic(span, fault, names) for (span, fault), names in groups.items())

    @property
    def summary(self) -> str:
        """Single line: `1 of 3 tensors that no checkpoint contains is wrong; 1 could not be checked`."""
        total = len(self.right) + len(self.wrong) + len(self.unchecked)
        be = "is" if len(self.wrong) == 1 else "are"
        repaired = ", and were repaired" if self.is_repaired and self.wrong else ""
        return (
            f"{len(self.wrong)} of {total} tensors that no checkpoint contains {be} wrong{repaired}; "
            f"{len(self.unchecked)} could not be checked"
        )

    def __str__(self) -> str:
        """Return a text with all findings, the tensors that were not checked, and a summary line."""
        reasons: dict[str, list[str]] = {}
        for found in self.unchecked:
            reasons.setdefault(found.reason, []).append(found.name)
        unchecked = [f"not checked: {_folded(names)}: {escaped(why)}" for why, names in reasons.items()]
        head = escaped(f"compared with {self.origin}")
        return "\n\n".join([head, *map(render_text, self.diagnostics), *unchecked, self.summary])


def _diagnostic(span: Span | None, fault: str, names: list[str]) -> Diagnostic:
    return rule("FE920").diagnostic(
        labels=(Label(span, "is created here"),) if span else (),
        notes=(f"{_folded(names)}: {fault}",),
        fix=Fix("recompute them after loading: `fakexport.verify_buffers(model, repair=True)`"),
        count=len(names),
    )


def _folded(names: list[str]) -> str:
    lines = [escaped(line) for line in fold_names(tuple(names))]
    more = f" and {len(lines) - _LINES} more" if len(lines) > _LINES else ""
    return ", ".join(lines[:_LINES]) + more


def difference_text(difference: float) -> str:
    """Describe the largest difference between a wrong tensor and the expected one."""
    if math.isnan(difference):
        return "some elements are not a number (NaN)"
    return f"largest difference {difference:.3g}"
