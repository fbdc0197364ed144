"""Which tensors that no checkpoint contains have the values that the model's code computes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fakexport.diagnostics import Diagnostic, Fix, Label, Span, escaped, render_text
from fakexport.rules import rule
from fakexport.weights.name_folding import fold_names

_LINES = 12


@dataclass(frozen=True)
class WrongBuffer:
    """A tensor that has other values than the model's code computes.

    Args:
        name: Full name: `model.rotary_emb.inv_freq`.
        fault: What is wrong, in a few words: `largest difference 0.8`.
        difference: The largest difference; NaN if one value is NaN, infinity if it cannot be computed.
        span: The line that creates the tensor, where it was found.
    """

    name: str
    fault: str
    difference: float
    span: Span | None = None


@dataclass(frozen=True)
class UncheckedBuffer:
    """A tensor whose right value is not known.

    Args:
        name: Full name.
        reason: Why, as a clause.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class BuffersReport:
    """The result of comparing the tensors of a model that no checkpoint contains with their right values.

    Args:
        origin: How the right values were computed.
        right: Names of the tensors that have them.
        wrong: Those that have others.
        unchecked: Those whose right value is not known.
        is_repaired: Whether the wrong ones were given the right values.
    """

    origin: str
    right: tuple[str, ...]
    wrong: tuple[WrongBuffer, ...]
    unchecked: tuple[UncheckedBuffer, ...]
    is_repaired: bool = False

    @property
    def is_right(self) -> bool:
        """Whether no tensor was found wrong. What could not be checked may still be."""
        return not self.wrong

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """One diagnostic for the tensors of each line and fault."""
        groups: dict[tuple[Span | None, str], list[str]] = {}
        for found in self.wrong:
            groups.setdefault((found.span, found.fault), []).append(found.name)
        return tuple(_diagnostic(span, fault, names) for (span, fault), names in groups.items())

    @property
    def summary(self) -> str:
        """One line: `1 of 3 tensors that no checkpoint contains is wrong; 1 could not be checked`."""
        total = len(self.right) + len(self.wrong) + len(self.unchecked)
        be = "is" if len(self.wrong) == 1 else "are"
        repaired = ", and now repaired" if self.is_repaired and self.wrong else ""
        return (
            f"{len(self.wrong)} of {total} tensors that no checkpoint contains {be} wrong{repaired}; "
            f"{len(self.unchecked)} could not be checked"
        )

    def __str__(self) -> str:
        """Every finding for people, what was not checked, and one line of summary."""
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
        fix=Fix("compute it again after loading: `fakexport.verify_buffers(model, repair=True)`"),
        count=len(names),
    )


def _folded(names: list[str]) -> str:
    lines = [escaped(line) for line in fold_names(tuple(names))]
    more = f" and {len(lines) - _LINES} more" if len(lines) > _LINES else ""
    return ", ".join(lines[:_LINES]) + more


def difference_text(difference: float) -> str:
    """Return a largest difference as the fault that it is."""
    if math.isnan(difference):
        return "some elements are not a number (NaN)"
    return f"largest difference {difference:.3g}"
